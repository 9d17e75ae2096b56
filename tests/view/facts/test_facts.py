"""Facts against brute force, on small data."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, NotFound, TooLarge
from penstock.load.explain import explain_step, run_of
from penstock.testing import FileServer
from penstock.testing.memory import MemoryTokens
from penstock.types import Finding
from penstock.view import facts
from penstock.view.facts.batches import eos_id_of, origins_of, sample_of, window_tokens
from penstock.view.facts.bounds import Bounds
from penstock.view.facts.lengths import EXACT, chosen, lengths_of
from penstock.view.facts.media import sniff_media
from penstock.view.facts.panel import json_lines, json_tree, panel
from penstock.view.facts.samples import document_tokens

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(st.text(), below, max_size=5),
    max_leaves=10,
)


def mixed(lengths: tuple[int, int] = (40, 80)) -> Any:
    sources = {
        name: ps.Chunk(4, labels="shift")(MemoryTokens([[*range(1, size), 0]], eos_id=0))
        for name, size in zip(("a", "b"), lengths, strict=True)
    }
    return ps.Blend(sources, {"a": 1, "b": 3}, seed=3)


# --- samples -------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.dictionaries(st.text(), VALUES, max_size=8))
def test_json_within_its_bounds(value: dict[str, Any]) -> None:
    whole = json_tree(value, Bounds(nodes=10**6, deep=99))
    assert list(json_lines(whole))
    assert whole.of == len(value)
    assert [one.name is not None for one in whole.children] == [True] * len(value)
    few = json_tree(value, Bounds(nodes=5, deep=2))

    def count(node: Any) -> int:
        return 1 + sum(map(count, node.children))

    assert count(few) <= 6
    assert len(few.children) + few.more == len(value)


@settings(max_examples=30)
@given(st.text(max_size=300), st.integers(1, 100))
def test_a_text_is_cut_and_says_so(text: str, most: int) -> None:
    shown = panel("t", text, bounds=Bounds(characters=most))
    assert (shown.kind, shown.shown, shown.of) == ("text", min(most, len(text)), len(text))
    assert shown.is_cut == (len(text) > most)
    shown.text.encode()  # no lone surrogate is left


@settings(max_examples=40)
@given(st.binary(max_size=200))
@example(b'" "')  # as a part of JSON this is a string of one space
def test_any_bytes_have_a_panel(data: bytes) -> None:
    for name in ("x", "json", "jpg", "npy", "txt.gz", "pkl", "mp4"):
        shown = panel(name, data)
        assert shown.name == name
        if shown.kind == "text":
            text = json.loads(data) if name == "json" else data.decode()
            assert shown.text == text[: len(shown.text)]
        if shown.kind == "bytes":
            assert bytes.fromhex(shown.text) == data[: shown.shown]


def test_what_a_part_is_is_seen_by_its_bytes() -> None:
    assert sniff_media(b"<svg onload=alert(1)>".ljust(64)) is None
    assert sniff_media(b"<!doctype html>".ljust(64)) is None
    assert sniff_media(b"\x89PNG\r\n\x1a\n".ljust(64)) == "image/png"
    assert sniff_media(b"RIFF\0\0\0\0WAVE".ljust(64)) == "audio/wav"
    assert sniff_media(b"\0\0\0\x18ftypmp42".ljust(64)) == "video/mp4"
    shown = panel("picture.png", b"<svg onload=alert(1)></svg>")
    assert (shown.kind, shown.media_type) == ("text", None)


def test_internal_fields_are_hidden_unless_asked_for() -> None:
    sample = {"__key__": "k", "__restore_key__": (1, 2), "txt": b"a", "__sources__": ()}
    shown = facts.panels(sample)
    assert ([one.name for one in shown.panels], shown.key, shown.of, shown.hidden) == (["txt"], "k", 1, 2)
    shown = facts.panels(sample, show_all=True)
    assert ([one.name for one in shown.panels], shown.hidden) == (["txt", "__restore_key__", "__sources__"], 0)


def test_a_list_goes_on_behind_a_broken_sample(tmp_path: Path) -> None:
    lines = ['{"id": 0}', "nope!", '{"id": 2}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    rows = [[0, 9], [10, 5], [16, 9]]
    import pickle

    (tmp_path / "a.idx").write_bytes(pickle.dumps([tuple(one) for one in rows]))
    opened = facts.open_target(tmp_path / "a.jsonl")
    shown = list(facts.page(opened, 0))
    assert [one.error is None for one in shown] == [True, False, True]
    assert "not valid JSON" in str(shown[1].error)
    assert shown[1].panels[0].text == "nope!"
    with pytest.raises(ConfigError, match="sample index out of range"):
        facts.sample_at(opened, 3)


def test_an_excluded_sample_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n{"id": 1}\n')
    ps.exclude(tmp_path / "a.jsonl", indices=[1], reason="asked for")
    opened = facts.open_target(tmp_path / "a.jsonl")
    shown = list(facts.page(opened, 0))
    assert [one.is_excluded for one in shown] == [False, True]
    assert facts.overview(opened).excluded == 1


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(0, 70), st.integers(1, 70))
def test_tokens_are_those_of_the_window(ids: list[int], start: int, most: int) -> None:
    starts = [place == 0 or ids[place - 1] == 0 for place in range(len(ids))]
    segments = np.cumsum(starts)
    mask = np.array([one % 2 for one in ids])
    window = {"inputs": np.array(ids, np.uint16), "targets": np.array([*ids[1:], 0]), "loss_mask": mask,
              "segment_ids": segments}  # fmt: skip
    run = facts.tokens(window, eos_id=0, start=start, most=most)
    num_shown = len(ids) + int(mask[-1])
    shown = range(min(start, num_shown), min(num_shown, min(start, num_shown) + most))
    assert [one.place for one in run.tokens] == list(shown)
    for one in run.tokens:
        if one.place == len(ids):  # the last target, which is no input
            assert (one.id, one.target, one.counts, one.begins) == (0, None, True, False)
            continue
        trained = one.place > 0 and bool(mask[one.place - 1])
        assert (one.id, one.is_eos, one.counts) == (ids[one.place], ids[one.place] == 0, trained)
        assert (one.begins, one.segment) == (one.place > 0 and starts[one.place], segments[one.place])
    assert (run.of, run.documents, run.padding, run.counted) == (num_shown, sum(starts), 0, int(mask.sum()))


def test_targets_are_painted_and_only_real_beginnings_marked(tmp_path: Path) -> None:
    lengths = [5, 3, 9, 4]
    make_pbin(tmp_path / "a.pbin", lengths)
    ids = np.concatenate([[1] * (length - 1) + [0] for length in lengths])
    first = np.concatenate(([0], np.cumsum(lengths)))
    windows = ps.Chunk(4, labels="shift")(ps.open(tmp_path / "a.pbin"))
    run = facts.open_run(ps.Sequential(windows), global_batch=1)
    for window in range(5):
        at = window * 4
        found = window_tokens(run, window, sample_of(run, window))
        assert found.is_shifted
        # independent of the window's columns: a token is trained unless it opens a document or is the window's first
        places = [place for place in range(at, at + 5) if place < at + 4 or place not in first]
        assert [one.id for one in found.tokens] == [ids[place] for place in places]
        assert [one.counts for one in found.tokens] == [place > at and place not in first for place in places]
        assert [one.begins for one in found.tokens] == [place in first for place in places]


def test_pieces_of_long_documents_are_not_marked_as_beginnings() -> None:
    window = {"inputs": np.arange(1, 7), "targets": np.array([2, 3, 4, 5, 6, 0]), "segment_ids": [1, 1, 2, 2, 3, 3],
              "loss_mask": [1, 0, 1, 0, 1, 0]}  # fmt: skip
    run = facts.tokens(window, documents=[(8, 4, 6), (9, 0, 2), (2, 3, 5)])
    assert [one.begins for one in run.tokens] == [False, False, True, False, False, False]
    assert [one.counts for one in run.tokens] == [False, True, False, True, False, True]


def test_the_mask_stays_where_the_targets_are_the_shown_tokens() -> None:
    window = {"tokens": np.array([5, 6, 7]), "inputs": np.array([0, 5, 6]), "targets": np.array([5, 6, 7]),
              "loss_mask": [1, 0, 1], "segment_ids": [1, 1, 1]}  # fmt: skip
    run = facts.tokens(window, documents=[(0, 0, 3)])
    assert not run.is_shifted
    assert [one.counts for one in run.tokens] == [True, False, True]
    assert [one.begins for one in run.tokens] == [True, False, False]


# --- datasets ------------------------------------------------------------------------------------------------------


def make_pbin(path: Path, lengths: list[int]) -> Path:
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        for length in lengths:
            writer.write({"tokens": [1] * (length - 1) + [0]})
    return path


def test_an_overview_of_tokens(tmp_path: Path) -> None:
    lengths = [1, 2, 3, 3, 9, 40]
    shown = facts.overview(facts.open_target(make_pbin(tmp_path / "a.pbin", lengths)))
    assert (shown.format, shown.samples.value, shown.samples.how) == ("pbin", 6, "side file")
    assert shown.tokens is not None
    assert (shown.tokens.count.value, shown.tokens.token_bytes, shown.tokens.eos_id) == (sum(lengths), 2, 0)
    assert shown.lengths is not None
    assert (shown.lengths.unit, shown.lengths.estimated_from, shown.lengths.of) == ("tokens", None, 6)
    for one in shown.lengths.bins:
        assert one.count == sum(one.start <= length <= one.stop for length in lengths)
    assert dict(shown.lengths.quantiles)[0.5] == 3
    assert shown.disk is not None
    assert shown.disk.size_bytes.value == (tmp_path / "a.pbin").stat().st_size


def test_lengths_of_many_are_estimated_and_say_of_how_many() -> None:
    few = chosen(EXACT)
    assert len(few) == EXACT
    many = chosen(10**9)
    assert len(many) == 4096
    assert len(np.unique(many // 8)) <= 2 * 512
    assert many[0] == 0
    assert many[-1] == 10**9 - 1


class Starts:
    """An index of documents that can't be read whole, and counts what is read of it."""

    def __init__(self, documents: int) -> None:
        self.documents, self.looked_at = documents, 0

    def __len__(self) -> int:
        return self.documents + 1

    def __getitem__(self, at: Any) -> Any:
        self.looked_at += len(at)
        return np.asarray(at) * 7


def test_lengths_of_ten_times_the_documents_read_as_much() -> None:
    for documents in (10**8, 10**9):
        source: Any = MemoryTokens([[1, 2]])
        starts = Starts(documents)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryTokens, "doc_starts", starts)
            found = lengths_of(source, documents, size_bytes=None, is_local=True)
        assert found is not None
        assert (found.estimated_from, found.of, found.mean) == (4096, documents, 7)
        assert starts.looked_at == 2 * 4096


def test_an_overview_asks_as_often_of_ten_times_the_data(tmp_path: Path) -> None:
    counts: list[int] = []
    for times in (20, 200):
        folder = tmp_path / str(times)
        with ps.create(folder, format="mds", columns={"text": "str"}, size_limit=1 << 10) as writer:
            for number in range(times):
                writer.write({"text": f"{number:04}" * 200})
        files = {f"set/{one.name}": one.read_bytes() for one in folder.rglob("*") if one.is_file()}
        with FileServer(files) as server:
            shown = facts.overview(facts.open_target(f"{server.url}/set"))
            assert shown.samples.value == times
            assert shown.shards is not None
            assert shown.shards.count == times
            counts.append(len(server.log))
    assert counts[0] == counts[1] < 100


def test_an_odd_shard_is_named(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="webdataset", maxcount=10) as writer:
        for number in range(47):
            writer.write({"__key__": f"k{number:02}", "txt": b"x"})
    shown = facts.overview(facts.open_target(tmp_path / "set"))
    assert shown.shards is not None
    assert (shown.shards.count, shown.shards.fewest, shown.shards.most, shown.shards.num_odd) == (5, 7, 10, 0)
    bars = [(one.first, one.last, one.most) for one in shown.shards.bars]
    assert bars == [*((at, at, 10) for at in range(4)), (4, 4, 7)]


def test_a_shelf(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    make_pbin(tmp_path / "deep" / "er" / "a.pbin", [3, 4])
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "c.ndjson").write_text('{"a": 1}\n')
    (tmp_path / "mix.yaml").write_text("path: b.jsonl\n")
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / ".work").mkdir()
    (tmp_path / ".killed; ls.pbin.work").mkdir()
    with ps.create(tmp_path / "tars", format="webdataset", maxcount=1) as writer:
        for key in "abc":
            writer.write({"__key__": key, "txt": b"x"})
    ps.prepare(tmp_path / "tars", split_ratio=[2, 1, 0], overwrite=True)
    (tmp_path / "broken.pbin").write_bytes(b"\xff" * 30)
    (tmp_path / "link").symlink_to("/")
    shown = facts.shelf(tmp_path)
    found = {one.path: one for one in shown.datasets}
    assert list(found) == [
        *("b.jsonl", "broken.pbin", "c.ndjson", "deep/er/a.pbin", "killed; ls.pbin", "left", "mix.yaml", "tars")
    ]
    assert (found["deep/er/a.pbin"].samples, found["deep/er/a.pbin"].tokens) == (2, 7)
    assert found["mix.yaml"].format == "recipe"
    assert "unfinished" in found["left"].warnings[0]
    assert "unfinished" in found["killed; ls.pbin"].warnings[0]
    assert f"'{tmp_path}/killed; ls.pbin'`" in found["killed; ls.pbin"].warnings[0]
    assert [(one.name, one.samples) for one in found["tars"].splits] == [("train", 2), ("val", 1), ("test", 0)]
    assert found["broken.pbin"].warnings
    assert "no side file" in found["b.jsonl"].warnings[0]
    with pytest.raises(NotFound):
        facts.shelf(tmp_path / "nowhere")


def test_where_a_sample_lies(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n{"id": "one"}\n')
    shown = facts.location(facts.open_target(tmp_path / "a.jsonl"), 1)
    [part] = shown.ranges
    assert part.command is not None
    import subprocess

    said = subprocess.run(part.command, shell=True, capture_output=True, check=True, cwd=tmp_path)
    assert json.loads(said.stdout) == {"id": "one"}
    assert "--index 1" in shown.command


def test_a_share_a_number_and_a_key(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="webdataset") as writer:
        for number in range(40):
            writer.write({"__key__": f"k{number:02}", "txt": b"x"})
    opened = facts.open_target(tmp_path / "set")
    asked = {"0": 0, "17": 17, "50 %": 20, "100%": 39, "k07": 7}
    assert {one: facts.index_of(opened, one) for one in asked} == asked
    for wrong in ("41", "nobody", "-1", ""):
        with pytest.raises((ConfigError, NotFound)):
            facts.index_of(opened, wrong)


# --- runs ----------------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 60), st.integers(2, 30))
def test_curves_count_what_is_read(batch: int, steps: int, points: int) -> None:
    data = mixed()
    shown = facts.curves(facts.open_run(data, global_batch=batch), steps, points)
    assert (shown.steps[0], shown.steps[-1]) == (0, steps)
    taken = [data.locate(position).path[0] for position in range(steps * batch)]
    for one in shown.curves:
        assert list(one.samples) == [taken[: step * batch].count(one.path) for step in shown.steps]


def test_stages_are_marked() -> None:
    stream = ps.Stages([(40, mixed()), (None, mixed((44, 80)))])
    shown = facts.curves(facts.open_run(stream, global_batch=8), 10, 3)
    assert shown.marks == ((5, "1"),)
    assert 5 in shown.steps
    node = facts.tree(facts.open_run(stream))
    assert [one.until for one in node.children] == [40, None]
    assert [(one.name, one.share) for one in node.children[0].children] == [("a", 0.25), ("b", 0.75)]


@settings(max_examples=8)
@given(st.integers(0, 20), st.integers(1, 4))
def test_a_batch_is_what_the_loader_gives(step: int, world: int) -> None:
    run = facts.open_run(mixed(), global_batch=12, world=world)
    shown = facts.batch(run, step)
    told = explain_step(run_of(run.data, run.global_batch, world, None), step)["samples"]
    assert [one.origin.position for one in shown.samples] == [one["position"] for one in told]
    assert dict(shown.shares) == dict(Counter("/".join(one["path"]) for one in told))
    for rank in range(world):
        loader = ps.Loader(run.data, 12, rank=rank, world=world, workers=0, start=step * 12)
        expected = next(iter(loader))["inputs"]
        own = [one for one in shown.samples if one.origin.rank == rank]
        assert [list(sample_of(run, one.origin.position)["inputs"]) for one in own] == expected.tolist()
    assert eos_id_of(run.data) == 0
    assert len(origins_of(run, step, 0)) == len(told) // world


def test_what_is_too_large_in_a_step_is_told_in_its_place(tmp_path: Path) -> None:
    path, large_bytes = tmp_path / "a.jsonl", 20 << 20
    first, last = b'{"text": "first"}\n', b'{"text": "last"}\n'
    with path.open("wb") as file:
        file.write(first)
        file.seek(large_bytes - 1, 1)  # a hole: it takes no room
        file.write(b"\n" + last)
    extents = [(0, len(first) - 1), (len(first), large_bytes - 1), (len(first) + large_bytes, len(last) - 1)]
    (tmp_path / "a.idx").write_bytes(pickle.dumps(extents))
    run = facts.open_run(ps.Sequential(ps.open(path)), global_batch=3)
    shown = facts.batch(run, 0)
    assert [[one.text for one in row.sample.panels] for row in shown.samples] == [["first"], [], ["last"]]
    assert "too large to read at once" in str(shown.samples[1].sample.error)
    assert [(one.name, one.shape) for one in shown.fields] == [("text", (3, None))]
    with pytest.raises(TooLarge, match="20,971,519 bytes at position 1"):
        sample_of(run, 1)


def test_two_steps_side_by_side() -> None:
    run = facts.open_run(mixed(), global_batch=8)
    same = facts.compare_batches(run, 3, run, 3)
    assert (same.only_in_a, same.only_in_b) == (0, 0)
    other = facts.compare_batches(run, 0, run, 1)
    assert other.common + other.only_in_a == len({(one.source, one.index) for one in origins_of(run, 0)})


# --- what others found ---------------------------------------------------------------------------------------------


SEVERITIES = st.sampled_from(["error", "warning"])


@settings(max_examples=30)
@given(st.lists(st.tuples(SEVERITIES, st.sampled_from("abc"), st.integers(0, 40)), max_size=80))
def test_findings_by_kind(rows: list[tuple[Any, str, int]]) -> None:
    shown = facts.health([Finding(f"f.{code}", severity, "p", place) for severity, code, place in rows])
    counted = Counter((severity, f"f.{code}") for severity, code, _ in rows)
    assert {(one.severity, one.code): one.count for one in shown.kinds} == counted
    assert (shown.errors, shown.warnings) == (
        sum(severity == "error" for severity, _, _ in rows), sum(severity == "warning" for severity, _, _ in rows)
    )  # fmt: skip
    assert [one.severity for one in shown.kinds] == sorted(one.severity for one in shown.kinds)


def test_what_diff_found(tmp_path: Path) -> None:
    for name, last in (("a", 2), ("b", 3)):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": 1}}\n{{"id": {last}}}\n')
    shown = facts.compared(ps.diff(tmp_path / "a.jsonl", tmp_path / "b.jsonl"))
    assert (shown.equal, shown.num_a, shown.only_in_a) == (False, 2, 1)
    assert shown.differences[0].rows == (("id", "2", "3"),)


def test_rows_of_a_block_have_no_length_of_their_own(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": ["a" * size for size in range(400)]})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    found = facts.overview(facts.open_target(tmp_path / "rows.parquet"))
    assert found.lengths is None
    assert found.unknown == ("sample lengths: unknown without an index",)


def test_a_plan_and_its_curves_are_of_the_same_samples(tmp_path: Path) -> None:
    make_pbin(tmp_path / "a.pbin", [3] * 70)
    (tmp_path / "run.yaml").write_text("path: a.pbin\nshuffle: {seed: 1}\n")
    run = facts.open_run(tmp_path / "run.yaml", global_batch=8)
    plan, drawn = facts.plan_of(run), facts.curves(run)
    assert plan.samples % 8
    assert [one.samples[-1] for one in drawn.curves] == [one.reads for one in plan.sources] == [70]
    assert plan.estimated == "estimated from 32 samples per source"
    (tmp_path / "a.pbin").unlink()
    (tmp_path / "a.pbin.penstock").unlink()
    make_pbin(tmp_path / "a.pbin", [3] * 20)
    assert facts.plan_of(facts.open_run(tmp_path / "run.yaml", global_batch=8)).estimated is None


def test_the_loss_mask_of_a_document_is_told(tmp_path: Path) -> None:
    masks = [np.arange(size) % 3 == 0 for size in (4, 30)]
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0, planes={"loss_mask": "bool"}) as writer:
        for mask in masks:
            writer.write({"tokens": np.arange(len(mask), dtype=np.uint16), "loss_mask": mask})
    opened = facts.open_target(tmp_path / "a.pbin")
    for index, mask in enumerate(masks):
        run, _ = document_tokens(opened, index, 0)
        assert [one.counts for one in run.tokens] == mask.tolist()
        assert run.counted == mask.sum()
    run, _ = document_tokens(opened, 1, 10, most=5)
    assert [one.counts for one in run.tokens] == masks[1][10:15].tolist()
    assert (run.counted, run.of) == (masks[1].sum(), 30)


class Bytes:
    """A vocabulary of the 256 bytes."""

    def bytes_of(self, token: int, /) -> bytes | None:
        return bytes([token]) if token < 256 else None


@given(st.lists(st.one_of(st.text(max_size=3).map(str.encode), st.binary(max_size=2)), max_size=12))
@settings(max_examples=200)
def test_tokens_read_as_their_text(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    run = facts.tokens({"tokens": np.frombuffer(data, np.uint8)}, texts=Bytes())
    read = "".join(one.reads for one in run.tokens)
    assert read == data.decode(errors="backslashreplace")


def test_a_character_of_several_tokens_ends_with_its_document() -> None:
    data = np.frombuffer("é😀".encode(), np.uint8)
    run = facts.tokens({"tokens": data}, texts=Bytes())
    assert [one.whole for one in run.tokens] == ["é", "", "😀", "", "", ""]
    assert run.tokens[0].text == "\\xc3"
    cut = facts.tokens({"tokens": data, "segment_ids": np.array([1, 2, 2, 2, 3, 3])}, texts=Bytes())
    assert {one.whole for one in cut.tokens} == {None}
