"""Findings about a file and its index, and the index made again."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.internals import MOST_FINDINGS, build_index

import penstock as ps
from penstock.errors import Unsupported
from penstock.types import Depth, Finding

DEPTHS: tuple[Depth, ...] = ("quick", "sample", "full")
LINES = [b'{"n": %d, "text": "%s"}' % (n, b"x" * n) for n in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def entries() -> list[tuple[int, int]]:
    lengths = np.array([len(line) for line in LINES])
    return list(zip((np.cumsum(lengths + 1) - lengths - 1).tolist(), lengths.tolist(), strict=True))


def put(path: Path, pairs: Sequence[tuple[int, int]]) -> None:
    path.with_suffix(".idx").write_bytes(pickle.dumps(list(pairs), 4))


def codes(path: Path, depth: Depth = "full") -> list[str]:
    findings = ps.verify(path, depth=depth)
    for one in findings:
        assert one.fix or one.found
    return [one.code for one in findings]


def only(path: Path, depth: Depth = "full") -> Finding:
    (found,) = ps.verify(path, depth=depth)
    return found


@pytest.mark.parametrize("depth", DEPTHS)
class TestSound:
    def test_an_index_of_the_original(self, path: Path, depth: Depth) -> None:
        put(path, entries())
        assert codes(path, depth) == []

    def test_an_index_without_faulty_lines(self, path: Path, depth: Depth) -> None:
        path.write_bytes(path.read_bytes().replace(LINES[7], b"?" * len(LINES[7])) + b"\n\n")
        put(path, entries()[:7] + entries()[8:])
        assert codes(path, depth) == []

    def test_no_index_is_a_warning(self, path: Path, depth: Depth) -> None:
        found = only(path, depth)
        assert (found.code, found.severity, found.path) == ("jsonl.no-index", "warning", str(path.with_suffix(".idx")))
        assert not path.with_suffix(".idx").exists()

    def test_an_empty_file(self, path: Path, depth: Depth) -> None:
        path.write_bytes(b"")
        put(path, [])
        assert codes(path, depth) == []


class TestIndex:
    def test_unreadable(self, path: Path) -> None:
        put(path, entries())
        index_path = path.with_suffix(".idx")
        whole = index_path.read_bytes()
        index_path.write_bytes(whole[:-1])
        assert codes(path) == ["jsonl.index"]
        index_path.write_bytes(b"\x80\x04]\x94cposix\nsystem\n.")
        found = only(path)
        assert (found.code, found.path, found.offset_bytes) == ("jsonl.unsafe-index", str(index_path), 4)

    def test_entries_that_leave_the_file(self, path: Path) -> None:
        size_bytes = path.stat().st_size
        put(path, [*entries(), (size_bytes - 3, 4), (1 << 62, 1 << 62)])
        found = ps.verify(path, depth="quick")
        assert [one.code for one in found] == ["jsonl.index-outside"] * 2
        assert found[0].offset_bytes == size_bytes - 3

    def test_entries_that_overlap(self, path: Path) -> None:
        pairs = entries()
        put(path, [*pairs[:3], pairs[2], *pairs[3:]])
        assert codes(path, "quick") == ["jsonl.index-overlap"]
        assert only(path, "quick").offset_bytes == pairs[2][0]

    def test_entries_out_of_order_are_a_warning(self, path: Path) -> None:
        put(path, entries()[::-1])
        assert [(one.code, one.severity) for one in ps.verify(path, depth="full")] == [("jsonl.order", "warning")]

    def test_entries_that_are_no_lines(self, path: Path) -> None:
        pairs = entries()
        put(path, [*pairs[:5], (pairs[5][0] + 1, pairs[5][1] - 1), *pairs[6:]])
        found = [one for one in ps.verify(path, depth="quick") if one.code == "jsonl.index-misfit"]
        assert [one.offset_bytes for one in found] == [pairs[5][0] + 1]

    def test_characters_counted(self, path: Path) -> None:
        text = '{"t": "ééé"}'
        path.write_text(text + "\n", "utf-8")
        put(path, [(0, len(text))])
        assert codes(path, "quick") == ["jsonl.index-counts-characters"]

    def test_two_lines_in_one_entry(self, path: Path) -> None:
        pairs = entries()
        put(path, [*pairs[:5], (pairs[5][0], pairs[5][1] + 1 + pairs[6][1]), *pairs[7:]])
        assert "jsonl.invalid-line" in codes(path)

    def test_lines_behind_the_index(self, path: Path) -> None:
        put(path, entries()[:-2])
        assert codes(path, "quick") == ["jsonl.index-behind"]

    def test_good_lines_left_out_are_a_warning(self, path: Path) -> None:
        put(path, entries()[:3] + entries()[5:])
        found = only(path)
        assert (found.code, found.severity, found.offset_bytes) == ("jsonl.left-out", "warning", entries()[3][0])
        assert codes(path, "sample") == []

    def test_many_findings_are_counted(self, path: Path) -> None:
        put(path, [(start, length + 1 << 40) for start, length in entries()])
        found = ps.verify(path, depth="quick")
        assert len(found) == MOST_FINDINGS + 1
        assert any("20 more" in str(one.found) for one in found)


class TestLines:
    @pytest.mark.parametrize("depth", ["sample", "full"])
    def test_a_faulty_line(self, path: Path, depth: Depth) -> None:
        put(path, entries())
        path.write_bytes(path.read_bytes().replace(LINES[7], b"?" * len(LINES[7])))
        found = only(path, depth)
        assert (found.code, found.offset_bytes) == ("jsonl.invalid-line", entries()[7][0])
        assert codes(path, "quick") == []

    @pytest.mark.parametrize("depth", ["sample", "full"])
    def test_a_faulty_line_without_an_index(self, path: Path, depth: Depth) -> None:
        path.write_bytes(path.read_bytes().replace(LINES[7], b"?" * len(LINES[7])))
        assert sorted(codes(path, depth)) == ["jsonl.invalid-line", "jsonl.no-index"]


class TestSideFile:
    @pytest.fixture
    def ours(self, tmp_path: Path) -> Path:
        path = tmp_path / "ours.jsonl"
        with ps.create(path, format="jsonl") as writer:
            for n in range(3000):
                writer.write({"n": n})
        return path

    def test_a_flipped_byte_that_is_valid_json(self, ours: Path) -> None:
        ours.write_bytes(ours.read_bytes().replace(b'{"n":1500}', b'{"n":1501}'))
        assert codes(ours, "sample") == []
        assert codes(ours) == ["jsonl.digest"]

    def test_a_change_at_the_edge(self, ours: Path) -> None:
        ours.write_bytes(b'{"m":0}' + ours.read_bytes()[7:])
        assert codes(ours, "quick") == ["jsonl.changed"]

    def test_another_size(self, ours: Path) -> None:
        ours.write_bytes(ours.read_bytes() + b"{}\n")
        assert codes(ours, "quick") == ["jsonl.changed", "jsonl.index-behind"]

    def test_an_index_with_fewer_lines(self, ours: Path) -> None:
        whole = pickle.loads(ours.with_suffix(".idx").read_bytes())
        put(ours, whole[1:])
        assert codes(ours, "quick") == ["jsonl.changed"]

    def test_made_for_foreign_data(self, path: Path) -> None:
        from tests.internals import write_side_file

        build_index(path)
        write_side_file(path)
        assert codes(path) == []
        path.write_bytes(path.read_bytes().replace(b'"n": 20', b'"n": 21'))
        assert codes(path) == ["jsonl.changed", "jsonl.digest"]


class TestRepair:
    def test_the_index_is_made_again_and_the_old_one_kept(self, path: Path) -> None:
        put(path, entries()[:-1])
        old = path.with_suffix(".idx").read_bytes()
        (action,) = ps.repair(path)
        assert (action.code, action.done) == ("jsonl.index-behind", False)
        assert path.with_suffix(".idx").read_bytes() == old
        (action,) = ps.repair(path, write=True)
        assert action.done
        assert codes(path) == []
        assert path.with_suffix(".idx.bak").read_bytes() == old
        assert ps.repair(path, write=True) == []

    def test_faulty_lines_are_left_out_and_counted(self, path: Path) -> None:
        path.write_bytes(path.read_bytes().replace(LINES[7], b"?" * len(LINES[7])))
        put(path, [(1, 2)])
        path.with_suffix(".idx.bak").write_bytes(b"older")
        (action,) = ps.repair(path, write=True)
        assert "39 lines, 1 invalid lines skipped" in action.what
        assert "line 8" in action.what
        assert path.with_suffix(".idx.bak").read_bytes() == b"older"
        assert path.with_suffix(".idx.bak1").exists()
        assert len(ps.open(path)) == 39

    def test_lengths_in_characters_reach_to_line_ends(self, path: Path) -> None:
        texts = [f'{{"t": "{"é" * (n % 3)}{n}"}}' for n in range(9)]
        path.write_text("\n".join(texts), "utf-8")
        starts = [len("\n".join([*texts[:n], ""]).encode()) for n in range(9)]
        chosen = [7, 0, 1, 2, 8, 4]  # an order and a choice of its own, which are kept
        put(path, [(starts[n], len(texts[n])) for n in chosen])
        old = path.with_suffix(".idx").read_bytes()
        (action,) = ps.repair(path)
        assert (action.code, action.done) == ("jsonl.index-counts-characters", False)
        assert path.with_suffix(".idx").read_bytes() == old
        (action,) = ps.repair(path, write=True)
        assert action.done
        assert path.with_suffix(".idx.bak").read_bytes() == old
        assert pickle.loads(path.with_suffix(".idx").read_bytes()) == [
            (starts[n], len(texts[n].encode())) for n in chosen
        ]
        assert ps.repair(path, write=True) == []

    def test_lengths_in_characters_with_carriage_returns(self, path: Path) -> None:
        texts = [f'{{"t": "{"é" * (n % 2)}{n}"}}' for n in range(6)]
        path.write_bytes("".join(text + "\r\n" for text in texts).encode())
        starts = [len("".join(text + "\r\n" for text in texts[:n]).encode()) for n in range(6)]
        put(path, [(start, len(text)) for start, text in zip(starts, texts, strict=True)])
        assert set(codes(path)) == {"jsonl.index-counts-characters"}
        (action,) = ps.repair(path, write=True)
        assert (action.code, action.done) == ("jsonl.index-counts-characters", True)
        pairs = pickle.loads(path.with_suffix(".idx").read_bytes())
        assert pairs == [(start, len(text.encode()) + 1) for start, text in zip(starts, texts, strict=True)]
        assert codes(path) == []

    def test_a_sound_file_needs_none(self, path: Path) -> None:
        put(path, entries())
        assert ps.repair(path, write=True) == []
        path.with_suffix(".idx").unlink()
        assert ps.repair(path, write=True) == []


class TestTheIndexIsNamed:
    def test_it_means_its_file(self, path: Path) -> None:
        put(path, entries()[:-1])
        index = path.with_suffix(".idx")
        assert ps.verify(index, depth="full") == ps.verify(path, depth="full") != []
        assert [one.path for one in ps.repair(index)] == [str(index)]
        assert ps.repair(index, write=True)[0].done
        assert ps.verify(index, depth="full") == []
        assert len(ps.open(index)) == len(LINES)

    def test_a_damaged_one_too(self, path: Path) -> None:
        path.with_suffix(".idx").write_bytes(b"rubbish")
        assert ps.verify(path.with_suffix(".idx"))[0].code == "jsonl.index"
        assert ps.repair(path.with_suffix(".idx"), write=True)[0].done
        assert len(ps.open(path)) == len(LINES)

    def test_beside_tokens_it_has_to_look_like_one(self, path: Path) -> None:
        put(path, entries())
        path.with_suffix(".bin").write_bytes(b"tokens")
        assert len(ps.open(path.with_suffix(".idx"))) == len(LINES)
        path.with_suffix(".idx").write_bytes(b"rubbish")
        with pytest.raises(Unsupported):
            ps.open(path.with_suffix(".idx"))

    def test_without_its_file(self, path: Path) -> None:
        put(path, entries())
        path.unlink()
        with pytest.raises(Unsupported):
            ps.verify(path.with_suffix(".idx"))


def test_an_index_that_leaves_out_carriage_returns_is_sound(path: Path) -> None:
    path.write_bytes(b"\r\n".join(LINES) + b"\r\n")
    lengths = np.array([len(line) for line in LINES])
    starts = np.cumsum(lengths + 2) - lengths - 2
    put(path, list(zip(starts.tolist(), lengths.tolist(), strict=True)))
    for depth in DEPTHS:
        assert codes(path, depth) == []
    assert [one["n"] for one in ps.open(path)] == list(range(len(LINES)))


def test_a_file_prepared_for_energon_needs_no_other_index(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n')
    assert [one.code for one in ps.verify(path)] == ["jsonl.no-index"]
    ps.prepare(path)
    assert (tmp_path / "a.jsonl.idx").exists()
    assert ps.verify(path) == []
    with path.open("a") as file:
        file.write("{")
    assert "jsonl.no-index" not in [one.code for one in ps.verify(path)]
