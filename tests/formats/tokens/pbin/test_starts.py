"""The sparse table of documents in the side file: few bytes for one document, and never a wrong one unseen."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._tokens import borders_around, borders_at, borders_of
from penstock.errors import Corrupt
from penstock.formats.tokens.pbin import FORMAT
from penstock.formats.tokens.pbin.source import PbinSource, open_pbin
from penstock.formats.tokens.pbin.starts import encode_starts, stated_starts
from penstock.formats.tokens.pbin.writer import write_pbin_manifest
from penstock.order import Take
from penstock.store.local import LocalStore
from penstock.store.side_file import encode_manifest, load_manifest
from penstock.testing import CountingStore
from penstock.types import Manifest, OpenOptions


def write(path: Path, count: int, most: int = 9) -> np.ndarray[Any, Any]:
    """A packed file of `count` documents, some empty; their lengths."""
    rng = np.random.default_rng(count)
    lengths = rng.integers(0, most, count)
    with ps.create(str(path), format="pbin", token_bytes=2) as writer:
        writer.write_run((np.arange(int(lengths.sum())) % 60_000).astype(np.uint16), lengths)
    return lengths


def opened(path: Path, store: Any = None) -> PbinSource:
    return open_pbin(store or LocalStore(), str(path), OpenOptions())


def side_of(path: Path) -> Path:
    return Path(f"{path}.penstock")


def told(path: Path, **fields: Any) -> None:
    """Other words in the side file, sealed as a writer seals them."""
    manifest = load_manifest(LocalStore(), str(side_of(path)))
    assert manifest is not None
    side_of(path).write_bytes(encode_manifest(replace(manifest, **fields)))


def table(path: Path) -> tuple[list[int], list[int], int]:
    manifest = load_manifest(LocalStore(), str(side_of(path)))
    found = stated_starts(manifest, opened(path).geometry)
    assert found is not None
    return found.places[:-1].tolist(), found.tokens[:-1].tolist(), found.num_docs


def findings(path: Path) -> list[str]:
    return [one.code for one in FORMAT.check(LocalStore(), str(path), OpenOptions(), "quick")]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("starts") / "a.pbin"
    write(path, 3 * 4096 + 77)
    return path


def test_first_touch_costs_the_same_at_ten_times_the_documents(tmp_path: Path) -> None:
    costs: list[tuple[int, int]] = []
    for count in (40_000, 400_000):
        one = tmp_path / f"{count}.pbin"
        lengths = write(one, count)
        store = CountingStore(LocalStore())
        source = opened(one, store)
        assert len(source) == count
        assert len(source[count // 2]["tokens"]) == lengths[count // 2]
        costs.append((store.reads, store.read_bytes))
    assert max(reads for reads, _ in costs) <= 12  # the layout takes up to 8 of 64 bytes
    assert costs[1][1] <= 1.2 * costs[0][1] < 200_000


def test_borders_are_those_of_the_whole_index(path: Path) -> None:
    starts = opened(path).doc_starts
    n, rng = len(starts) - 1, np.random.default_rng(0)
    for first, stop in [(0, 0), (0, 1), (0, n), (n, n), (n - 1, n), (4095, 4097), (4096, 4096), (5000, 9000)]:
        assert np.array_equal(borders_of(opened(path), first, stop), starts[first : stop + 1])
    indices = rng.integers(0, n, 500)
    for found, expected in zip(borders_at(opened(path), indices), (starts[indices], starts[indices + 1]), strict=True):
        assert np.array_equal(found, expected)
    assert len(borders_at(opened(path), indices[:0])[0]) == 0
    for start in [0, 1, *rng.integers(0, int(starts[-1]), 50).tolist(), *starts[4094:4099].tolist(), int(starts[-1])]:
        for length in (0, 1, 3000, 40_000):
            stop = min(start + length, int(starts[-1]))
            first, borders = borders_around(opened(path), start, stop)
            assert np.array_equal(borders, starts[first : first + len(borders)])
            assert borders[0] <= start
            assert borders[-1] >= stop
            low = int(np.searchsorted(starts, start, side="right")) - 1
            assert first <= low < first + len(borders)


def test_samples_windows_and_places_without_the_whole_index(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = opened(path)
    starts = whole.doc_starts
    expected = [whole[5000]["tokens"].tolist(), whole.place_of(9000)]
    windows = ps.Chunk(64)(whole)
    places = [windows.place_of(one) for one in (0, 300, len(windows) - 1)]
    taken = Take(whole, 3000, 9000).tokens(0, 10).tolist()

    def refuse(*_: object) -> None:
        raise AssertionError("the whole index is decoded")

    monkeypatch.setattr(PbinSource, "_load_doc_starts", refuse)
    bare = opened(path)
    assert [bare[5000]["tokens"].tolist(), bare.place_of(9000)] == expected
    assert bare[-1]["tokens"].tolist() == whole.tokens(int(starts[-2]), int(starts[-1])).tolist()
    assert [one.tolist() for one in bare.get_batch([7, 9000])["tokens"]] == [
        whole[i]["tokens"].tolist() for i in (7, 9000)
    ]
    windows = ps.Chunk(64)(bare)
    assert [windows.place_of(one) for one in (0, 300, len(windows) - 1)] == places
    assert Take(bare, 3000, 9000).tokens(0, 10).tolist() == taken


def test_who_asks_for_documents_everywhere_has_the_index_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.formats.tokens.pbin.source._MOST_PIECES", 2)
    lengths = write(tmp_path / "a.pbin", 4 * 4096)
    store = CountingStore(LocalStore())
    source = opened(tmp_path / "a.pbin", store)
    for index in range(0, len(source), 999):
        assert len(source[index]["tokens"]) == lengths[index]
    assert store.read_bytes < 3 * source.geometry.index_bytes


class TestOtherSideFiles:
    """Old ones, foreign ones and wrong ones."""

    def test_one_without_a_table(self, tmp_path: Path) -> None:
        lengths = write(tmp_path / "a.pbin", 9000)
        side = side_of(tmp_path / "a.pbin")
        stated = json.loads(side.read_text())
        for key in ("starts", "check"):
            del stated[key]
        side.write_text(json.dumps(stated))
        assert len(opened(tmp_path / "a.pbin")[8999]["tokens"]) == lengths[8999]
        assert findings(tmp_path / "a.pbin") == []

    def test_few_documents_need_none(self, tmp_path: Path) -> None:
        write(tmp_path / "a.pbin", 4096)
        manifest = load_manifest(LocalStore(), str(side_of(tmp_path / "a.pbin")))
        assert manifest is not None
        assert manifest.starts is None

    def test_foreign_files_get_the_same(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pbin"
        write(path, 20_000)
        written = table(path)
        side_of(path).unlink()
        write_pbin_manifest(LocalStore(), str(path), OpenOptions())
        assert table(path) == written

    def test_numbered_tuples_can_not_be_read_in_pieces(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pbin"
        write(path, 5000)
        geometry = opened(path).geometry
        data = path.read_bytes()
        pairs = pickle.loads(data[geometry.index_start_bytes :])
        path.write_bytes(data[: geometry.index_start_bytes] + pickle.dumps(pairs, 2))
        side_of(path).unlink()
        write_pbin_manifest(LocalStore(), str(path), OpenOptions())
        manifest = load_manifest(LocalStore(), str(side_of(path)))
        assert manifest is not None
        assert manifest.starts is None
        assert (
            opened(path)[4999]["tokens"].tolist()
            == opened(path).tokens(pairs[-1][0] // 2, sum(pairs[-1]) // 2).tolist()
        )

    @pytest.mark.parametrize("column", [0, 1])
    @pytest.mark.parametrize("piece", [1, 2])
    def test_another_place(self, tmp_path: Path, column: int, piece: int) -> None:
        path = tmp_path / "a.pbin"
        lengths = write(path, 3 * 4096, most=5)
        *columns, count = table(path)
        columns[column][piece] += 3
        told(path, starts=encode_starts(*columns, count))
        assert findings(path) == ["pbin.side-file"]
        for document in (piece * 4096 - 1, piece * 4096):
            with pytest.raises(Corrupt):
                opened(path)[document]
        source = opened(path)
        untouched = 4096 * 3 - 1 if piece == 1 else 0
        assert len(source[untouched]["tokens"]) == lengths[untouched]
        if column:
            with pytest.raises(Corrupt, match="document table"):
                source.doc_starts  # noqa: B018

    def test_a_table_of_other_documents_is_found_by_verify_and_by_the_whole_index(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pbin"
        lengths = write(path, 4 * 4096)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places, tokens, count = table(path)
        data = path.read_bytes()[opened(path).geometry.index_start_bytes :]
        for piece in (1, 2, 3):  # each begins one document later than it says
            end = data.index(b"\x86\x94", places[piece]) + 2
            places[piece] = end + 2 * (data[end : end + 2] == b"e(")
            tokens[piece] = int(starts[4096 * piece + 1])
        told(path, starts=encode_starts(places, tokens, count))
        assert findings(path) == ["pbin.side-file"]
        for document in (4095, count - 1):  # of the first piece and the last
            with pytest.raises(Corrupt, match="document table"):
                opened(path)[document]
        with pytest.raises(Corrupt, match="document table"):
            opened(path).doc_starts  # noqa: B018

    @pytest.mark.parametrize("text", ["", " ", "AAAA", "AAAA AAAA", "!!!! ????", "A" * 4000 + " " + "A" * 4000])
    def test_no_table_at_all(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "a.pbin"
        lengths = write(path, 9000)
        told(path, starts=text)
        assert len(opened(path)[8999]["tokens"]) == lengths[8999]
        assert findings(path) == ["pbin.side-file"]

    def test_more_documents_than_there_are(self, tmp_path: Path) -> None:
        path = tmp_path / "a.pbin"
        write(path, 9000)
        told(path, num_samples=9001)
        with pytest.raises(Corrupt):
            opened(path)[9000]


def test_steps_are_bounded() -> None:
    geometry: Any = type("G", (), {"layout": None, "offset_base_bytes": 0})()
    assert stated_starts(Manifest("pbin", 9000, 1, starts="AAAA AAAA"), geometry) is None
