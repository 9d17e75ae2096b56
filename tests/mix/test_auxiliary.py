"""`WithAux`: stores of files for functions over samples."""

from __future__ import annotations

from typing import Any

import pytest
from tests.internals import describe

from penstock.abc import SupportsFiles, SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.mix import Blend, Concat, Map, WithAux, aux_of, subset
from penstock.order import Shuffle, Skip
from penstock.testing.memory import MemorySource
from penstock.testing.sources import SourceLaws
from penstock.testing.streams import StreamLaws
from penstock.types import ImageMetadata, Sample


class Files(MemorySource):
    """Files by name: `<n>.txt` holds n."""

    def get(self, name: str, /) -> bytes:
        for sample in (self[index] for index in range(len(self))):
            if name == f"{sample['n']}.txt":
                return str(sample["n"]).encode()
        raise NotFound(f"no file {name}")

    def get_media_metadata(self, name: str, /) -> ImageMetadata:
        return ImageMetadata(1, 2, "PNG", "L")

    def key_of(self, index: int, /) -> str:
        return str(self[index]["n"])

    def index_of(self, key: str, /) -> int:
        for index in range(len(self)):
            if self.key_of(index) == key:
                return index
        raise NotFound(key)


def numbers(length: int) -> MemorySource:
    return MemorySource([{"n": i} for i in range(length)])


def files(length: int = 9) -> Files:
    return Files([{"n": i} for i in range(length)])


def read(sample: Sample, texts: SupportsFiles) -> Sample:
    return {"n": sample["n"], "text": texts.get(f"{sample['n']}.txt")}


class TestSource(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return WithAux(numbers(5), texts=files())

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"n": i} for i in range(5)]


class TestOfFiles(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return WithAux(files(5), texts=files())

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"n": i} for i in range(5)]


class TestStream(StreamLaws):
    def make(self) -> Any:
        return WithAux(Shuffle(numbers(30), 1), texts=files())


class TestMapped(StreamLaws):
    maps = True

    def make(self) -> Any:
        return Map(Shuffle(WithAux(numbers(9), texts=files()), 1), read)


@pytest.mark.parametrize(
    "make",
    [
        lambda: WithAux(numbers(9), texts=files()),
        lambda: subset(WithAux(numbers(9), texts=files()), ["0%", "100%"]),
        lambda: Shuffle(WithAux(numbers(9), texts=files()), 1),
        lambda: WithAux(Shuffle(numbers(9), 1), texts=files()),
        lambda: Skip(Shuffle(WithAux(numbers(9), texts=files()), 1), [(2, 4)]),
    ],
)
def test_functions_get_the_stores_by_name(make: Any) -> None:
    mapped = Map(make(), read)
    assert mapped[3]["text"] == str(mapped[3]["n"]).encode()
    batch = mapped.get_batch([0, 5])
    assert batch["text"] == [str(n).encode() for n in batch["n"].tolist()]


def test_stores_of_several_layers_are_all_given() -> None:
    inner, outer = files(3), files(4)
    both = WithAux(Shuffle(WithAux(numbers(9), inner=inner), 1), outer=outer)
    assert aux_of(both) == {"inner": inner, "outer": outer}
    assert both.aux == {"outer": outer}
    with pytest.raises(ConfigError, match="already in use"):
        WithAux(both, inner=files())
    assert aux_of(Concat([numbers(3), numbers(4)])) == {}


def test_what_gives_no_files_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'texts' can't be.*a MemorySource.*flavor='energon'"):
        WithAux(numbers(3), texts=numbers(3))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        WithAux(numbers(3))
    with pytest.raises(ConfigError, match="already in use"):
        WithAux(numbers(3), source=files())


def test_the_stores_are_part_of_the_fingerprint() -> None:
    def made(below: Any, length: int = 9, name: str = "texts") -> str:
        return WithAux(below, **{name: files(length)}).fingerprint

    for below in (numbers(5), Shuffle(numbers(5), 1)):
        assert len({below.fingerprint, made(below), made(below, length=8), made(below, name="other")}) == 4


def test_a_state_knows_the_stores_by_name() -> None:
    def described(length: int = 9, below: Any = None) -> Any:
        return describe(WithAux(Shuffle(numbers(5), 1) if below is None else below, texts=files(length)), 40)

    assert set(described().children) == {"stream", "texts"}
    changed = [name for name in described().children if described().children[name] != described(8).children[name]]
    assert changed == ["texts"]
    assert set(describe(Shuffle(WithAux(numbers(5), texts=files()), 1), 40).children) == {"source", "texts"}


def test_powers_of_the_source_stay() -> None:
    assert isinstance(WithAux(files(), texts=files()), SupportsKeys)
    assert isinstance(WithAux(files(), texts=files()), SupportsFiles)
    assert not isinstance(WithAux(numbers(3), texts=files()), SupportsKeys)
    assert not isinstance(WithAux(numbers(3), texts=files()), SupportsFiles)
    assert WithAux(files(), texts=files()).get("3.txt") == b"3"


def test_open_seeds_and_stand_ins_pass() -> None:
    stream = WithAux(Shuffle(numbers(9)), texts=files())
    blend = Blend({"a": stream}, {"a": 1}, 5)
    assert blend.children()["a"].fingerprint != stream.fingerprint
    assert stream.substitute(3, 1) == Shuffle(numbers(9)).substitute(3, 1)


def test_the_tree_names_the_stores() -> None:
    assert str(WithAux(numbers(3), texts=files())).splitlines()[0] == "AuxSource  aux=texts"
