"""`verify` of packed files: every kind of damage is found, with its place and a fix; sound files have no finding."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import MOST_FINDINGS, MOST_PROBLEMS, decode_manifest, encode_manifest
from tests.internals import PBIN_FORMAT as FORMAT

from penstock.errors import ConfigError, NotFound
from penstock.store import LocalStore
from penstock.types import Depth, Finding, OpenOptions

Build = Callable[..., bytes]
Put = Callable[..., str]
DOCS = [[300, 2, 7], [7], [], [65_535, 0, 1, 7], [5, 7]]
DEPTHS: tuple[Depth, ...] = ("quick", "sample", "full")


def check(path: str | Path, depth: Depth = "full", **options: Any) -> list[Finding]:
    return FORMAT.check(LocalStore(), str(path), OpenOptions(**options), depth)


def codes(path: str | Path, depth: Depth = "full", **options: Any) -> list[str]:
    return [one.code.removeprefix("pbin.") for one in check(path, depth, **options)]


def write(path: Path, docs: list[Any], token_bytes: int = 2, **options: Any) -> Path:
    with FORMAT.create(LocalStore(), str(path), {"token_bytes": token_bytes, **options}, overwrite=False) as writer:
        writer.write_batch({"tokens": docs})
    return path


def tell(side: Path, **fields: Any) -> None:
    """Make a side file say something else."""
    told = decode_manifest(side.read_bytes())
    assert told is not None
    side.write_bytes(encode_manifest(dataclasses.replace(told, **fields)))


def text_like(n_docs: int, vocab_size: int, seed: int = 0) -> list[Any]:
    """Documents whose ids come as often as words do."""
    rng = np.random.default_rng(seed)
    return [np.minimum(rng.zipf(1.3, size), vocab_size) - 1 for size in rng.integers(20, 200, n_docs)]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(
    "name", ["docs.bpe2", "docs.small1", "docs.word4", "chunk_0_of_3_seed7", "writer_t1", "writer_t4"]
)
def test_files_of_the_original_are_clean(golden: Path, name: str, depth: Depth) -> None:
    assert check(golden / "modalities" / "pbin" / f"{name}.pbin", depth) == []


def test_eos_of_a_golden_file(golden: Path) -> None:
    path = golden / "modalities" / "pbin" / "docs.bpe2.pbin"
    assert codes(path, eos_id=0, vocab_size=600) == []
    assert set(codes(path, eos_id=1)) == {"no-eos"}
    assert set(codes(path, vocab_size=599)) == {"token-range"}


def test_merged(golden: Path) -> None:
    [finding] = check(golden / "modalities" / "pbin" / "merged.pbin", "quick")
    assert finding.code == "pbin.merged-offsets"
    assert finding.offset_bytes == 12 + 1246
    assert "repair" in str(finding.fix)


@pytest.mark.parametrize("layout", ["h12le-abs", "h12be", "h8", "h4"])
def test_old_layouts_are_a_warning(packed: Build, put: Put, layout: str) -> None:
    [finding] = check(put(packed(DOCS, layout)))
    assert (finding.code, finding.severity) == ("pbin.old-layout", "warning")


def test_empty_is_a_warning(packed: Build, put: Put) -> None:
    [finding] = check(put(packed([])))
    assert (finding.code, finding.severity) == ("pbin.empty", "warning")


def test_header_problems_are_those_of_open(packed: Build, put: Put) -> None:
    whole = packed()
    for data, code in (
        (whole[:20], "truncated"),
        (whole[:-1], "truncated-index"),
        (b"\0" * 8 + whole[8:], "unfinished"),
        (whole[:8] + b"\3" + whole[9:], "token-bytes"),
        (b"", "header"),
    ):
        [finding] = check(put(data), "quick")
        assert (finding.code, finding.severity) == (f"pbin.{code}", "error")
        assert finding.offset_bytes is not None
        assert finding.fix


@pytest.mark.parametrize(
    ("pairs", "code", "offset_bytes"),
    [
        ([(0, 6), (6, 2), (8, 0), (8, 8), (18, 2)], "index-hole", 12 + 16),
        ([(0, 6), (6, 2), (8, 0), (8, 8)], "index-hole", 12 + 16),
        ([(0, 6), (4, 4), (8, 12)], "index-overlap", 12 + 4),
        ([(0, 6), (8, 12), (6, 2)], "index-hole", 12 + 6),
        ([(0, 6), (6, 16)], "index-outside", 12 + 6),
        ([(0, 6), (1 << 62, 14)], "index-outside", None),
        ([(0, 6), (6, (1 << 63) - 1)], "index-outside", 12 + 6),
        ([(0, 6), ((1 << 63) - 1, (1 << 63) - 1)], "index-outside", None),
        ([(0, 5), (5, 15)], "token-bytes", 8),
        ([(2, 18)], "index-hole", 12),
        ([], "index-hole", 12),
    ],
)
def test_index(packed: Build, put: Put, pairs: list[tuple[int, int]], code: str, offset_bytes: int | None) -> None:
    path = put(packed(pairs=pairs))
    found = check(path, "quick")
    assert found[0].code == f"pbin.{code}"
    assert found[0].severity == "error"
    assert found[0].fix
    if offset_bytes is not None:
        assert found[0].offset_bytes == offset_bytes
    assert {one.code for one in check(path)} >= {f"pbin.{code}"}


def test_many_wrong_entries_are_counted(packed: Build, put: Put) -> None:
    for pairs in ([(4 * doc, 2) for doc in range(100)], [(800 + doc, 2) for doc in range(100)]):
        path = put(packed([[1, 2]] * 100, pairs=[(0, 4), *pairs]))
        found = check(path, "quick")
        counts = [str(one.found) for one in found if one.offset_bytes is None]
        assert counts == ["80 more wrong entries"]
        assert MOST_PROBLEMS + 1 <= len(found) <= MOST_PROBLEMS + 2


def test_index_that_is_no_list_of_pairs(packed: Build, put: Put) -> None:
    whole = packed()
    start = 12 + 20
    for index, code in (
        (pickle.dumps([(0, 20, 1)]), "no-index"),
        (pickle.dumps([(0, 6), (6, "x")]), "index"),
        (pickle.dumps([(0, 6), (6, 1.5)]), "index"),
        (pickle.dumps([(0, 6), (6, -2)]), "index"),
        (pickle.dumps([(0, 6), (6, 1 << 63)]), "index"),
        (pickle.dumps([(0, 6), len]).replace(b".", b"e.", 1), "unsafe-index"),
    ):
        found = check(put(whole[:start] + index + b"e."), "quick")
        assert found[0].code in (f"pbin.{code}", "pbin.index", "pbin.unsafe-index")
        assert found[0].severity == "error"
        assert found[0].offset_bytes is not None
        assert found[0].offset_bytes >= start


def test_documents_without_eos(packed: Build, put: Put) -> None:
    path = put(packed())
    assert codes(path, "quick", eos_id=7) == []
    [finding] = check(path, "sample", eos_id=7)
    assert finding.code == "pbin.no-eos"
    assert finding.offset_bytes == 12 + 8
    assert "document 2 ends with no token" in str(finding.found)
    found = check(put(packed([[1, 2]] * 50 + [[1, 7]])), eos_id=7)
    assert len(found) == MOST_FINDINGS + 1
    assert [one.offset_bytes for one in found] == [None, *(12 + 4 * doc + 2 for doc in range(MOST_FINDINGS))]
    with pytest.raises(ConfigError):
        check(path, eos_id=1 << 16)


def test_documents_need_not_end_in_the_recorded_eos(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pbin", [[1, 7], [2], [3, 7]], eos_id=7)
    assert check(path) == []
    [finding] = check(path, eos_id=7)
    assert "document 1 ends with id 2" in str(finding.found)


def test_ids_beyond_the_vocabulary(packed: Build, put: Put) -> None:
    path = put(packed([[1, 2, 900], [950, 3]]))
    assert codes(path, "quick", vocab_size=900) == []
    found = check(path, "full", vocab_size=900)
    assert [(one.code, one.offset_bytes) for one in found] == [("pbin.token-range", 16), ("pbin.token-range", 18)]
    assert "id 950 at token 3" in str(found[1].found)
    found = check(put(packed([[500] * 100])), vocab_size=500)
    assert len(found) == MOST_FINDINGS + 1


def test_sample_reads_places_all_over(tmp_path: Path) -> None:
    tokens = np.ones(1_000_000, np.uint16)
    tokens[-1] = 50
    path = tmp_path / "a.pbin"
    with FORMAT.create(LocalStore(), str(path), {"token_bytes": 2}, overwrite=False) as writer:
        writer.write_run(tokens, np.array([1_000_000]))
    assert codes(path, "sample", vocab_size=50) == ["token-range"]
    assert codes(path, "full", vocab_size=50) == ["token-range"]


@pytest.mark.parametrize(("stored", "claimed"), [(2, 1), (4, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("vocab_size", [600, 50_000])
def test_wrong_width(tmp_path: Path, stored: int, claimed: int, vocab_size: int) -> None:
    for seed, even in ((0, False), (1, True)):
        docs = text_like(200, vocab_size, seed)
        if even:
            docs = [doc[: len(doc) & ~1] for doc in docs]
        path = write(tmp_path / str(seed), docs, stored)
        Path(f"{path}.penstock").unlink()
        data = bytearray(path.read_bytes())
        data[8] = claimed
        path.write_bytes(data)
        assert "token-bytes" in codes(path, "sample"), (stored, claimed, even)


def test_the_width_is_not_guessed_where_the_writer_says_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [np.array([number % 300 + 1, 0]) for number in range(500)], 2)
    assert codes(path, "full") == []
    side = Path(f"{path}.penstock")
    told = side.read_text()
    side.write_text(told.replace('"token_bytes": 2', '"token_bytes": 4'))
    assert "token-bytes" in codes(path, "sample")
    side.unlink()
    assert "token-bytes" in codes(path, "sample")


@pytest.mark.parametrize("token_bytes", [1, 2, 4])
def test_right_width_is_not_suspected(tmp_path: Path, token_bytes: int) -> None:
    rng = np.random.default_rng(2)
    limit = 1 << 8 * token_bytes
    for number, docs in enumerate(
        (
            [rng.integers(0, limit, 2 * size) for size in rng.integers(1, 100, 100)],
            text_like(100, min(limit, 200)),
            [np.tile([1, limit - 1], 32)] * 50,
            [np.arange(256) % limit] * 40,
            [np.zeros(64, np.uint8)] * 40,
            [np.tile([3, 200], size) for size in range(1, 100)],
        )
    ):
        assert codes(write(tmp_path / str(number), docs, token_bytes)) == []


class TestSideFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        docs = [np.random.default_rng(doc).integers(8, 60_000, 3000) for doc in range(10)]
        return write(tmp_path / "a.pbin", docs)

    def test_a_flipped_bit_in_the_middle(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[30_000] ^= 1
        path.write_bytes(data)
        assert codes(path, "quick") == []
        [finding] = check(path, "full")
        assert (finding.code, finding.severity, finding.offset_bytes) == ("pbin.digest", "error", 0)

    def test_a_flipped_bit_at_an_edge(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
        assert codes(path, "quick") == ["changed"]
        assert codes(path, "full") == ["changed", "digest"]

    def test_of_another_file(self, path: Path, tmp_path: Path) -> None:
        other = write(tmp_path / "b.pbin", DOCS)
        Path(f"{other}.penstock").replace(f"{path}.penstock")
        [finding] = check(path, "quick")
        assert (finding.code, finding.severity, finding.path) == ("pbin.changed", "error", str(path))
        assert "bytes" in str(finding.found)
        assert "as recorded in the side file" in str(finding.expected)

    def test_no_side_file_at_all(self, path: Path) -> None:
        side = Path(f"{path}.penstock")
        side.write_bytes(b"{")
        assert codes(path) == ["side-file"]
        side.unlink()
        assert codes(path) == []

    def test_counts_that_differ(self, path: Path) -> None:
        side = Path(f"{path}.penstock")
        tell(side, num_samples=11)
        assert codes(path, "quick") == ["changed"]

    def test_largest_id(self, path: Path) -> None:
        side = Path(f"{path}.penstock")
        tell(side, max_token_id=59_000)
        assert "token-range" in codes(path, "sample")


def test_check_writes_nothing(packed: Build, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    path = put(packed())
    before = sorted(tmp_path.iterdir())
    check(path, eos_id=7, vocab_size=5)
    assert sorted(tmp_path.iterdir()) == before


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        check(tmp_path / "a.pbin")
