"""`Concat`: sources end to end, and token sources as one run of tokens."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import is_token_source

import penstock as ps
from penstock._access import extents_of_tokens
from penstock.abc import SupportsDocumentFlags, SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.mix import Blend, Concat, ConcatSource, concat
from penstock.order import Sequential, Shuffle
from penstock.pack import Chunk
from penstock.store import mapped as mappings
from penstock.testing.memory import KeyedSource, MemorySource, MemoryTokens
from penstock.testing.sources import SourceLaws, TokenSourceLaws, same
from penstock.types import Extent, Field, Place, Sample, Schema

A: list[Sample] = [{"n": n, "x": np.arange(3), "text": "a" * n} for n in range(4)]
B: list[Sample] = [{"n": n, "x": np.arange(n % 4), "text": "b"} for n in range(10, 16)]
DOCUMENTS = [[[1, 2, 3, 0], [4, 0]], [], [[0], [5, 6, 7, 8, 9, 0], [2, 0]], [[3, 0]]]
FLAT = [document for part in DOCUMENTS for document in part]


class TestConcat(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Concat([MemorySource(A), MemorySource([]), MemorySource(B)])

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [*A, *B]


@pytest.mark.parametrize("start_flags", [False, True])
class TestConcatTokens(TokenSourceLaws):
    @pytest.fixture
    def source(self, start_flags: bool) -> Any:
        return Concat([MemoryTokens(part, eos_id=0, start_flags=start_flags) for part in DOCUMENTS])

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(document, dtype=np.uint8)} for document in FLAT]


@pytest.mark.parametrize("labels", ["shift", "start-zero"])
@pytest.mark.parametrize("start_flags", [False, True])
def test_windows_cross_borders(start_flags: bool, labels: Any) -> None:
    parts = [MemoryTokens(part, eos_id=0, start_flags=start_flags) for part in DOCUMENTS]
    one = Chunk(5, labels=labels)(MemoryTokens(FLAT, eos_id=0))
    joined = Chunk(5, labels=labels)(Concat(parts))
    assert len(joined) == len(one)
    for index in range(len(one)):
        assert {name: np.asarray(value).tolist() for name, value in joined[index].items()} == {
            name: np.asarray(value).tolist() for name, value in one[index].items()
        }
        assert joined.documents_of(index) == one.documents_of(index)


def test_columns_stay_arrays_where_all_agree() -> None:
    joined = Concat([MemorySource(A), MemorySource(B)])
    batch = joined.get_batch([5, 0, 3, 5])
    assert batch["n"].tolist() == [11, 0, 3, 11]
    assert isinstance(batch["x"], np.ndarray)
    assert batch["x"].tolist() == [[0, 1, 2]] * 4
    ragged = joined.get_batch([7, 0])
    assert [x.tolist() for x in ragged["x"]] == [[0], [0, 1, 2]]


def test_fields_that_only_one_source_has() -> None:
    joined = Concat([MemorySource([{"a": 1}]), MemorySource([{"b": 2}])])
    assert joined.get_batch([1, 0]) == {"a": [None, 1], "b": [2, None]}


def test_one_child_is_read_in_one_call() -> None:
    calls: list[list[int]] = []

    class Counting(MemorySource):
        def get_batch(self, indices: Any, /) -> Any:
            calls.append(list(indices))
            return super().get_batch(indices)

    Concat([Counting(A), Counting(B)]).get_batch([5, 1, 9, 0, 4])
    assert calls == [[1, 0], [1, 5, 0]]


def test_of_token_sources_it_is_one() -> None:
    plain, flagged = ([MemoryTokens(part, eos_id=0, start_flags=flags) for part in DOCUMENTS] for flags in (0, 1))
    assert is_token_source(Concat(plain))
    assert not is_token_source(Concat([MemorySource(A)]))
    assert all(isinstance(Concat(one), SupportsDocumentFlags) for one in (plain, [*plain[:1], *flagged], flagged))
    assert extents_of_tokens(Concat(plain)) is None


class WithExtents(MemoryTokens):
    def token_extent(self, start: int, stop: int, /) -> tuple[Extent, ...]:
        return (Extent(str(len(self)), start, stop - start),)


def test_file_ranges_across_borders() -> None:
    joined = Concat([WithExtents([[1, 2, 3]]), WithExtents([]), WithExtents([[4], [5, 6]])])
    assert joined.token_extent is not None
    assert joined.token_extent(1, 5) == (Extent("1", 1, 2), Extent("2", 0, 2))
    assert joined.token_extent(3, 4) == (Extent("2", 0, 1),)
    assert joined.token_extent(3, 3) == ()


def test_tokens_inside_one_source_are_not_copied() -> None:
    parts = [MemoryTokens([[1, 2, 3]]), MemoryTokens([[4, 5]])]
    joined = Concat(parts)
    assert np.shares_memory(joined.tokens(3, 5), parts[1].tokens(0, 2))
    assert joined.tokens(2, 4).tolist() == [3, 4]


def test_what_does_not_belong_together() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Concat([])
    with pytest.raises(ConfigError, match="token widths"):
        Concat([MemoryTokens([[1]]), MemoryTokens([[1]], dtype="uint32")])
    # Tokens that are no one run, as the last source has none, but of which some are known not to belong together.
    parts = [MemoryTokens([[1]], tokenizer_digest=digest) for digest in ("aa", "bb")]
    with pytest.raises(ConfigError, match="tokenizers"):
        Concat([*parts, MemorySource(A)])
    taken = Concat([*parts, MemorySource(A)], mixed_tokenizers=True)
    assert taken.recipe()["mixed_tokenizers"] is True


WINDOWS: list[Sample] = [{"tokens": np.array([1, 2, 3], dtype="uint16")} for _ in range(3)]
WIDE: list[Sample] = [{"tokens": np.array([n, 5, 70_000], dtype="uint32"), "id": n} for n in range(3)]


def of_windows() -> tuple[MemorySource, MemorySource]:
    narrow = MemorySource(WINDOWS, Schema((Field("tokens", "tokens", "uint16", (3,)),)))
    wide = MemorySource(WIDE, Schema((Field("tokens", "tokens", "uint32", (3,)), Field("id", "int"))))
    return narrow, wide


class TestDifferentSchemas(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Concat([MemorySource(A), *of_windows()])

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [*A, *WINDOWS, *WIDE]


class TestWidths(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Concat(of_windows())

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [*({"tokens": one["tokens"].astype("uint32")} for one in WINDOWS), *WIDE]


def test_the_schema_is_what_all_have_in_common() -> None:
    narrow, wide = of_windows()
    joined = Concat([narrow, wide])
    assert joined.schema == Schema((Field("tokens", "tokens", "uint32", (3,)),), open=True)
    assert Concat([narrow, narrow]).schema == narrow.schema
    batch = joined.get_batch([4, 0])
    assert batch["tokens"].dtype == np.uint32
    assert batch["tokens"].tolist() == [[1, 5, 70_000], [1, 2, 3]]
    assert batch["id"] == [1, None]
    with_text = Concat([narrow, MemorySource(A, Schema((Field("text", "text"),)))])
    assert with_text.schema == Schema((), open=True)
    assert Concat([MemorySource(A), MemoryTokens([[1]])]).schema.open


def test_widths_stay_where_samples_come_as_stored() -> None:
    joined = ConcatSource(of_windows(), as_stored=True)
    assert [joined[index]["tokens"].dtype for index in (0, 3)] == [np.uint16, np.uint32]
    assert joined.schema.fields == (Field("tokens", "tokens", None, (3,)),)


def test_a_batch_is_as_that_of_a_blend() -> None:
    children = dict(zip("ab", of_windows(), strict=True))
    mixed = Blend({name: Sequential(child) for name, child in children.items()}, {"a": 1, "b": 1})
    owner, inner = mixed.split(np.arange(6))
    both = Concat(list(children.values())).get_batch(owner * 3 + inner % 3)
    assert same(both, mixed.get_batch(np.arange(6)))


def test_formats_in_one(tmp_path: Any) -> None:
    with ps.create(tmp_path / "t.pbin", format="pbin", token_bytes=2, eos_id=0) as out:
        for n in range(3, 6):
            out.write({"tokens": [7] * n + [0]})
    with ps.create(tmp_path / "mds", format="mds", columns={"text": "str", "id": "int"}) as out:
        out.write({"text": "mds", "id": 1})
    with ps.create(tmp_path / "other", format="mds", columns={"name": "str"}) as out:
        out.write({"name": "another column"})
    with ps.create(tmp_path / "wds", format="webdataset") as out:
        out.write({"__key__": "k", "txt": "wds"})
    (tmp_path / "a.jsonl").write_text('{"text": "jsonl"}\n')
    names = ("mds", "other", "wds", "a.jsonl")
    parts = [ps.Chunk(5)(ps.open(tmp_path / "t.pbin")), *(ps.open(tmp_path / name) for name in names)]
    joined = ps.Concat(parts)
    expected = [part[index] for part in parts for index in range(len(part))]
    assert len(joined) == len(expected) == 7
    assert all(same(joined[index], sample) for index, sample in enumerate(expected))
    assert joined.get_batch([3, 6])["text"] == ["mds", "jsonl"]
    batch = next(iter(ps.Loader(joined, global_batch=7, rank=0, world=1, workers=0, tail="pad")))
    assert list(batch["text"]) == [None, None, None, "mds", None, None, "jsonl"]
    again = ps.open_recipe({"concat": [{"path": str(tmp_path / name)} for name in names]})
    assert again.fingerprint == ps.Concat(parts[1:]).fingerprint
    assert ps.open_recipe(joined.recipe()).fingerprint == joined.fingerprint


def keyed(keys: str) -> KeyedSource:
    return KeyedSource([{"__key__": key} for key in keys])


class TestKeys(SourceLaws):
    @pytest.fixture
    def source(self) -> Any:
        return Concat([keyed("ab"), keyed(""), keyed("cde")])

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"__key__": key} for key in "abcde"]


def test_keys_are_known_where_all_sources_know_theirs() -> None:
    joined = Concat([keyed("ab"), keyed("cde")])
    assert isinstance(joined, SupportsKeys)
    assert joined.key_run is not None
    assert joined.key_of(-1) == "e"
    assert [joined.key_run(start, stop) for start, stop in ((0, 5), (1, 3), (2, 2), (3, 5))] == [
        list("abcde"), list("bc"), [], list("de"),
    ]  # fmt: skip
    with pytest.raises(NotFound, match="'x'"):
        joined.index_of("x")
    # As in a source that has a key twice, it stands for the first of the two.
    assert Concat([keyed("ab"), keyed("ba")]).index_of("a") == 0  # pyright: ignore[reportOptionalCall]
    assert not isinstance(Concat([keyed("ab"), MemorySource(A)]), SupportsKeys)


def test_different_tokenizers_are_taken_only_when_asked() -> None:
    parts = [MemoryTokens([[1]], tokenizer_digest=digest) for digest in ("aa", None, "bb")]
    with pytest.raises(ConfigError, match="mixed_tokenizers=True"):
        Concat(parts)
    assert Concat(parts, mixed_tokenizers=True).tokenizer_digest is None
    assert Concat(parts[:2]).tokenizer_digest is None
    assert Concat([parts[0], parts[0]]).tokenizer_digest == "aa"


def test_the_eos_id_is_known_where_all_agree() -> None:
    zero, one, unknown = (MemoryTokens([[1]], eos_id=eos_id) for eos_id in (0, 1, None))
    assert Concat([zero, zero]).eos_id == 0
    assert Concat([zero, one]).eos_id is None
    assert Concat([zero, unknown]).eos_id is None


class InBlocks(MemorySource):
    preferred_mode = "blocks"

    @property
    def block_starts(self) -> Any:
        return np.array([0, 2, len(self)])

    def place_of(self, index: int, /) -> Place:
        return Place(key=f"k{index}")


def test_blocks_and_places_are_those_of_the_sources() -> None:
    joined = Concat([MemorySource(A), InBlocks(B)])
    assert joined.block_starts.tolist() == [0, 4, 6, 10]
    assert joined.preferred_mode == "blocks"
    assert Concat([MemorySource(A)]).preferred_mode == "global"
    assert joined.place_of(-1) == Place(key="k5")
    assert Shuffle(joined, 1).version == "blocks-1"


def test_what_it_tells_of_itself() -> None:
    a, b = MemorySource(A), MemorySource(B)
    joined = Concat([a, b])
    assert joined.children() == {"0": a, "1": b}
    assert joined.recipe() == {"kind": "concat", "sources": [a.recipe(), b.recipe()]}
    assert joined.fingerprint != Concat([b, a]).fingerprint


def test_many_sources_print_on_a_screen() -> None:
    text = str(Concat([MemorySource(A) for _ in range(1000)]))
    assert len(text.splitlines()) <= 24
    assert "984 more" in text


# --- what it costs with many sources ----------------------------------------------------------------------------


class CountedText(str):
    """A digest that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedText.compared += 1
        return str.__eq__(self, str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Touched(MemoryTokens):
    """Tokens that count how often one of many is asked for anything that reads."""

    touched = 0

    def __init__(self, documents: Any) -> None:
        super().__init__(documents, eos_id=0, start_flags=True)
        self.tokenizer_digest = CountedText("same")

    def __getattribute__(self, name: str) -> Any:
        if name in ("gather", "gather_starts", "get_batch", "tokens", "prefetch", "key_of"):
            Touched.touched += 1
        return super().__getattribute__(name)


def test_the_price_of_many_sources_is_linear() -> None:
    compared: list[int] = []
    for count in (100, 1000):
        CountedText.compared = 0
        joined = Concat([Touched([[1, 2, 0], [3, 0]]) for _ in range(count)])
        assert joined.tokenizer_digest == "same"
        compared.append(CountedText.compared)
    assert compared[1] <= 12 * compared[0]


def test_a_batch_asks_the_sources_that_it_reads_alone() -> None:
    asked: list[int] = []
    for count in (100, 1000):
        joined = Concat([Touched([[1, 2, 0], [3, 0]]) for _ in range(count)])
        windows = Chunk(4)(joined)
        Touched.touched = 0
        windows.get_batch([0, 1, len(windows) - 1])
        joined.get_batch([5, 1, 5])
        joined.gather(np.array([7, 1]), 2)
        joined.tokens(8, 14)
        asked.append(Touched.touched)
    assert asked[0] == asked[1]


def test_hints_go_to_the_sources_that_are_read() -> None:
    hints: dict[int, list[list[list[int]]]] = {}

    class Hinted(MemorySource):
        def __init__(self, number: int) -> None:
            super().__init__([{"n": n} for n in range(3)])
            self.number = number

        def prefetch(self, batches: Any, /, *, whole: bool = False) -> None:
            hints.setdefault(self.number, []).append(batches.tolist())

    joined = Concat([*(Hinted(number) for number in range(50)), MemorySource([{"n": 0}])])
    assert joined.prefetch is not None
    joined.prefetch(np.array([[0, 4, 5], [2, 1, 5], [4, 150, 150]]))
    assert hints == {0: [[[0]], [[2, 1]]], 1: [[[2], [1]], [[1, 2]]]}


def test_many_documents_are_mapped_once_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    small = Concat([MemoryTokens(part, eos_id=0) for part in DOCUMENTS]).doc_starts
    monkeypatch.setattr(concat, "_DERIVED_DOCS", 2)
    monkeypatch.setattr(concat, "_RUN_DOCS", 2)
    for _ in range(2):
        joined = Concat([MemoryTokens(part, eos_id=0) for part in DOCUMENTS])
        assert joined.doc_starts.tolist() == small.tolist()
        assert not joined.doc_starts.flags.writeable
    assert len(list((tmp_path / "derived").glob("concat-starts*.npy"))) == 1


def test_doc_starts_take_the_memory_of_the_result_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(concat, "_DERIVED_DOCS", 1000)
    monkeypatch.setattr(concat, "_RUN_DOCS", 1000)
    peaks: list[int] = []
    for count in (400, 1600):
        part = MemoryTokens([[0]] * 1000, eos_id=0)
        joined = Concat([part] * count)
        joined.fingerprint  # noqa: B018
        tracemalloc.start()
        assert len(joined.doc_starts) == 1000 * count + 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2_000_000


def test_many_files_need_few_descriptors_and_mappings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mappings, "MOST_HELD", 8)
    with ps.create(tmp_path / "0.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        writer.write({"tokens": np.array([1, 2, 3, 0], np.uint16)})
    for number in range(1, 300):
        shutil.copy(tmp_path / "0.pbin", tmp_path / f"{number}.pbin")
    maps: list[int] = []
    files = len(os.listdir("/proc/self/fd"))
    for count in (30, 300):
        joined: Any = Concat([ps.open(tmp_path / f"{number}.pbin") for number in range(count)])
        assert Chunk(3)(joined).get_batch(np.arange(count))["tokens"][:2].tolist() == [[1, 2, 3], [0, 1, 2]]
        mapped = Path("/proc/self/maps").read_text()
        maps.append(mapped.count(f"{tmp_path}/"))
        assert len(os.listdir("/proc/self/fd")) <= files + 1
    assert max(maps) <= 8
