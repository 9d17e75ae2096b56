"""datatrove's files: tokens, and the ends of documents beside them."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.internals import DATATROVE_FORMAT as FORMAT

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Truncated, Unsupported
from penstock.store import LocalStore
from penstock.testing import CountingStore, TokenSourceLaws
from penstock.types import OpenOptions, Sample

DOCS = [[300, 2, 7], [], [7], [5, 0, 1, 7]]
SEED = [[1, 2], [3, 4, 5], [6, 7, 8]]


def put(path: Path, docs: list[list[int]] = DOCS, width: int = 2, metadata: str | None = "gpt2|2\n8\n8 T") -> str:
    tokens = [token for doc in docs for token in doc]
    np.array(tokens, f"<u{width}").tofile(path)
    np.cumsum([len(doc) for doc in docs]).astype("<u8").tofile(f"{path}.index")
    if metadata is not None:
        Path(f"{path}.metadata").write_text(metadata)
    return str(path)


class TestDatatrove(TokenSourceLaws):
    read: ClassVar = "auto"

    @pytest.fixture
    def source(self, tmp_path: Path) -> Any:
        return ps.open(put(tmp_path / "a.ds"), read=self.read)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        return [{"tokens": np.array(doc, np.uint16)} for doc in DOCS]

    def test_prints_a_screen(self, source: Any) -> None:
        assert str(source).startswith("datatrove")


class TestWithoutMaps(TestDatatrove):
    read: ClassVar = "pread"


@pytest.mark.parametrize("width", [2, 4])
def test_golden(golden: Path, tmp_path: Path, width: int) -> None:
    path = golden / "datatrove" / f"seed_{width}byte.ds"
    source: Any = ps.open(path)
    assert [sample["tokens"].tolist() for sample in source] == SEED
    assert source.dtype.itemsize == width
    assert list(source.planes) == ["loss_mask"]
    np.testing.assert_array_equal(
        np.concatenate([sample["loss_mask"] for sample in source]),
        np.fromfile(f"{path}.loss", np.uint8) != 0,
    )
    assert ps.verify(path, depth="full") == []
    for name in (path.name, path.name + ".index"):
        (tmp_path / name).write_bytes((golden / "datatrove" / name).read_bytes())
    bare: Any = ps.open(tmp_path / path.name)  # without metadata the sizes tell
    assert [sample["tokens"].tolist() for sample in bare] == SEED
    assert not hasattr(bare, "planes")


def test_width_that_nothing_tells(tmp_path: Path) -> None:
    path = put(tmp_path / "a.ds", [], metadata=None)
    with pytest.raises(ConfigError, match="layout"):
        ps.open(path)
    source: Any = ps.open(path, layout="uint32")
    assert (len(source), source.num_tokens, source.dtype) == (0, 0, np.uint32)
    with pytest.raises(ConfigError, match="uint16"):
        ps.open(path, layout="uint8")
    path = put(tmp_path / "b.ds", [[1, 2]], metadata="odd|9\n")
    assert len(ps.open(path)) == 1


@pytest.mark.parametrize(
    ("damage", "kind", "code"),
    [
        (lambda path: os.truncate(path, 6), Truncated, "datatrove.size"),
        (lambda path: os.truncate(path, 40), Corrupt, "datatrove.size"),
        (lambda path: os.truncate(path + ".index", 30), Corrupt, "datatrove.index-size"),
        (lambda path: np.array([3, 2, 4, 8], "<u8").tofile(path + ".index"), Corrupt, "datatrove.index"),
        (lambda path: np.array([3, 1 << 63, 4, 8], "<u8").tofile(path + ".index"), Corrupt, "datatrove.index"),
        (lambda path: np.array([3, 1 << 63], "<u8").tofile(path + ".index"), Truncated, "datatrove.size"),
    ],
)
def test_damage(tmp_path: Path, damage: Any, kind: type[PenstockError], code: str) -> None:
    path = put(tmp_path / "a.ds")
    damage(path)
    with pytest.raises(kind):
        len(ps.open(path))
    findings = ps.verify(path)
    assert [(one.code, one.severity) for one in findings] == [(code, "error")]
    assert findings[0].fix


def test_no_index(tmp_path: Path) -> None:
    path = put(tmp_path / "a.ds")
    os.unlink(path + ".index")
    with pytest.raises(Unsupported, match=r"no file with an \.index"):
        ps.open(path)
    with pytest.raises(NotFound):
        ps.open(path, format="datatrove")
    assert [one.code for one in ps.verify(path, format="datatrove")] == ["datatrove.missing"]
    with pytest.raises(NotFound):
        ps.verify(tmp_path / "no.ds", format="datatrove")


def test_ids_and_ends(tmp_path: Path) -> None:
    path = put(tmp_path / "a.ds", [[300, 2, 7], [7], [5, 0, 1, 7]])
    assert ps.verify(path, eos_id=7, vocab_size=301, depth="full") == []
    assert [one.code for one in ps.verify(path, vocab_size=300)] == ["datatrove.token-range"]
    assert {one.code for one in ps.verify(path, eos_id=1)} == {"datatrove.no-eos"}
    assert ps.open(path, eos_id=7).recipe()["eos_id"] == 7


def test_windows_need_no_index(tmp_path: Path) -> None:
    store = CountingStore(LocalStore())
    source = FORMAT.open(store, put(tmp_path / "a.ds", [[1, 2, 3]] * 1000), OpenOptions())
    source.gather(np.array([5]), 10)
    assert store.read_bytes < 100
    assert source.gather_starts(np.array([2]), 3).tolist() == [[False, True, False]]


def test_a_stranger_with_an_index_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_bytes(b"12345")
    (tmp_path / "a.dat.index").write_bytes(b"12345678")
    assert not FORMAT.sniff(LocalStore(), str(tmp_path / "a.dat")).matches
    with pytest.raises(Unsupported, match="read-only"):
        ps.create(tmp_path / "b.ds", format="datatrove")


def test_a_loss_mask_is_a_plane(tmp_path: Path) -> None:
    path = put(tmp_path / "a.ds")
    bare: Any = ps.open(path)
    ends = np.cumsum([0, *map(len, DOCS)])
    mask = np.arange(ends[-1]) % 3 == 0
    (tmp_path / "a.ds.loss").write_bytes((mask * 2).astype(np.uint8).tobytes())  # what is not 0 counts
    for read in ("mmap", "pread"):
        source: Any = ps.open(path, read=read)
        for index, (start, stop) in enumerate(itertools.pairwise(ends.tolist())):
            np.testing.assert_array_equal(source[index]["loss_mask"], mask[start:stop])
        windows: Any = ps.Chunk(2, labels="shift", eos_id=0)(source)
        own: Any = ps.Chunk(2, labels="shift", eos_id=0)(bare)
        for index in range(len(windows)):
            expected = own[index]["loss_mask"] & mask[2 * index + 1 : 2 * index + 3]
            np.testing.assert_array_equal(windows[index]["loss_mask"], expected)
    again: Any = pickle.loads(pickle.dumps(source))
    assert again.fingerprint == source.fingerprint != bare.fingerprint == ps.open(path, planes=None).fingerprint
    ps.convert(path, tmp_path / "a.pbin")
    made: Any = ps.open(tmp_path / "a.pbin")
    for index in range(len(DOCS)):
        np.testing.assert_array_equal(made[index]["loss_mask"], source[index]["loss_mask"])
    (tmp_path / "a.ds.loss").write_bytes(np.ones(ends[-1], np.uint8).tobytes())
    assert ps.open(path).fingerprint != source.fingerprint


@pytest.mark.parametrize("change", [-1, 1])
def test_a_loss_mask_of_another_length(tmp_path: Path, change: int) -> None:
    path = put(tmp_path / "a.ds")
    (tmp_path / "a.ds.loss").write_bytes(bytes(sum(map(len, DOCS)) + change))
    with pytest.raises(Truncated, match="different lengths") as caught:
        ps.open(path)
    assert str(caught.value.path).endswith("a.ds.loss")
    assert [one.code for one in ps.verify(path)] == ["datatrove.loss-mask"]
    assert ps.verify(path, planes=None) == []
    assert not hasattr(ps.open(path, planes=None), "planes")
