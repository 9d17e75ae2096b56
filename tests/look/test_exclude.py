"""`exclude`: the list, what opens by it, streams and windows over it, and the verbs that leave its samples out."""

from __future__ import annotations

import errno
import gzip
import io
import json
import multiprocessing
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.internals import NO_LIST, excluded_samples
from tests.look.datasets import MAKERS, lines, tars

import penstock as ps
from penstock.errors import ConfigError, Corrupt, Excluded, NotFound, PenstockError, TooLarge
from penstock.look import exclude as exclude_module
from penstock.look import find as find_module
from penstock.store import LocalStore, exclude_list

ROWS: list[dict[str, Any]] = [{"id": 100 + n, "text": f"text {n}", "meta": {"n": n}} for n in range(17)]
GONE = (3, 7, 16)
TOKENIZER = Path(__file__).parent.parent / "golden" / "modalities" / "tokenizers" / "bpe2"


DATASETS = {name: MAKERS[name] for name in ("a.jsonl", "mds", "a.parquet")} | {"tars": tars}


@pytest.fixture(params=list(DATASETS))
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return DATASETS[request.param](ROWS, tmp_path / request.param)


def take_out(path: Path, *indices: int, **options: Any) -> Any:
    return ps.exclude(path, indices=list(indices or GONE), reason="asked for", **options)


def make_tokens(path: Path, lengths: list[int], eos_id: int | None = 0) -> list[np.ndarray]:
    documents = [np.full(length, 10 + n, np.uint16) for n, length in enumerate(lengths)]
    if eos_id is not None:
        documents = [np.append(one, np.uint16(eos_id)) for one in documents]
    suffix = {".pbin": "pbin", ".idx": "megatron", ".zarr": "flat-tokens"}[path.suffix]
    options = {} if suffix == "flat-tokens" else {"token_bytes": 2}
    with ps.create(path, format=suffix, eos_id=eos_id, **options) as writer:
        for one in documents:
            writer.write({"tokens": one})
    return documents


# --- the list and the source ---------------------------------------------------------------------------------------


def test_excluded_samples_are_errors_and_nothing_else_moves(dataset: Path) -> None:
    before: Any = ps.open(dataset)
    samples = [before[n] for n in range(len(before))]
    fingerprint = before.fingerprint
    report = take_out(dataset)
    assert (report.added, report.entries) == (3, 3)
    after: Any = pickle.loads(pickle.dumps(ps.open(dataset)))
    assert (len(after), after.fingerprint) == (17, fingerprint)
    for n in range(17):
        if n in GONE:
            with pytest.raises(Excluded, match="asked for"):
                after[n]
        else:
            assert str(after[n]) == str(samples[n])
    with pytest.raises(Excluded):
        after.get_batch([0, 7])
    assert len(after.get_batch([0, 8])) == len(before.get_batch([0, 8]))
    assert isinstance(Excluded("x"), NotFound)


def test_again_undone_and_shown(tmp_path: Path) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    take_out(path, 3, 7)
    assert take_out(path, 7, 8).already == 1
    listed = tmp_path / "a.jsonl.penstock.exclude.jsonl"
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    assert [one["index"] for one in lines] == [3, 7, 8]
    assert {"index", "key", "digest", "reason", "time", "who"} <= set(lines[0])
    assert lines[0]["key"] == "103"
    assert [one.index for one in excluded_samples(path).entries] == [3, 7, 8]
    report = ps.exclude(path, key="103", undo=True)
    assert (report.removed, report.entries) == (1, 2)
    assert ps.open(path)[3]["id"] == 103
    assert ps.exclude(path, key="103", undo=True).removed == 0
    with pytest.raises(NotFound, match="no sample has this key"):
        ps.exclude(path, key=["107", "nobody"], undo=True)
    assert [one.index for one in excluded_samples(path).entries] == [7, 8]
    assert ps.exclude(path, undo=True).entries == 0
    assert not list(tmp_path.glob("*exclude*"))


def test_by_keys_and_by_an_expression_all_or_nothing(tmp_path: Path) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    with pytest.raises(NotFound, match="no sample has this key"):
        ps.exclude(path, key=["103", "nobody"], reason="r")
    with pytest.raises(NotFound, match="matches the expression"):
        ps.exclude(path, where="meta.n > 90", reason="r")
    with pytest.raises(ConfigError, match="a reason is required"):
        ps.exclude(path, key="103")
    with pytest.raises(ConfigError, match="the samples to exclude are not specified"):
        ps.exclude(path, reason="r")
    with pytest.raises(NotFound, match="sample index out of range"):
        take_out(path, 17)
    assert not list(tmp_path.glob("*exclude*"))
    ps.exclude(path, key=["103", "107"], reason="r")
    ps.exclude(path, where="meta.n > 14", reason="r")
    assert [one.index for one in excluded_samples(path).entries] == [3, 7, 15, 16]


@pytest.mark.parametrize("harm", ["cut", "cut at a line", "not JSON", "changed", "empty", "other data"])
def test_a_list_that_can_not_be_read_is_an_error_that_names_it(tmp_path: Path, harm: str) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    take_out(path)
    listed = tmp_path / "a.jsonl.penstock.exclude.jsonl"
    data = listed.read_bytes()
    lines = data.splitlines(keepends=True)
    if harm == "other data":
        with path.open("a") as file:
            file.write('{"id": 1}\n')
    else:
        listed.write_bytes(
            {
                "cut": data[:-9],
                "cut at a line": b"".join(lines[:2]),
                "not JSON": data + b"{\n",
                "changed": data.replace(b'"index":7', b'"index":8'),
                "empty": b"",
            }[harm]
        )
    for read in (ps.open, lambda one: ps.merge([one], tmp_path / "out.jsonl"), lambda one: take_out(one, 1)):
        with pytest.raises((Corrupt, ConfigError), match="exclude list") as raised:
            read(path)
        assert raised.value.path == str(listed)
    assert not [*tmp_path.rglob("*.lock")]


def _exclude(path: str, index: int) -> None:
    ps.exclude(path, indices=[index], reason="rival")


def test_rival_writers_lose_nothing(tmp_path: Path) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    context = multiprocessing.get_context("fork")
    rivals = [context.Process(target=_exclude, args=(str(path), n)) for n in range(6)]
    for one in rivals:
        one.start()
    for one in rivals:
        one.join(60)
    assert sorted(one.index for one in excluded_samples(path).entries) == list(range(6))


def test_lists_elsewhere(tmp_path: Path) -> None:
    path, listed = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl"), tmp_path / "list.jsonl"
    take_out(path, list=listed)
    assert ps.open(path)[3]["id"] == 103
    with pytest.raises(Excluded):
        ps.open(path, excludes=str(listed))[3]
    with pytest.raises(NotFound):
        ps.open(path, excludes=str(tmp_path / "none.jsonl"))
    assert ps.merge([path], tmp_path / "out.jsonl", excludes=str(listed)).output.samples == 14


def counting(real: Any, seen: list[object]) -> Any:
    """The function, which notes each call."""
    return lambda *given, **options: seen.append(given) or real(*given, **options)


@pytest.mark.parametrize("suffix", [".jsonl", ".pbin"])
def test_what_lies_side_by_side_is_read_once(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice a sample, and a quarter of a millisecond each: 7 minutes for a million."""
    reads: dict[int, int] = {}
    for count in (300, 3000):
        path = tmp_path / f"{count}{suffix}"
        options = {"format": "pbin", "token_bytes": 2, "eos_id": 0} if suffix == ".pbin" else {"format": "jsonl"}
        with ps.create(path, **options) as writer:
            for number in range(count):
                writer.write({"tokens": np.array([number, 0], np.uint16)} if suffix == ".pbin" else {"id": number})
        looked: list[object] = []
        with monkeypatch.context() as patch:
            for name in ("samples_at", "digests_of"):
                real = getattr(exclude_module, name)
                patch.setattr(exclude_module, name, counting(real, looked))
            assert ps.exclude(path, indices=range(1, count - 1), reason="r").added == count - 2
        reads[count] = len(looked)
        entries = excluded_samples(path).entries
        assert [one.key for one in entries] == [None if suffix == ".pbin" else str(one.index) for one in entries]
        assert len({one.digest for one in entries}) == count - 2
    assert reads == {300: 1, 3000: 1}


def test_what_lies_apart_is_read_by_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file was opened for each of them."""
    calls: dict[tuple[int, int], int] = {}
    for count, apart in ((300, 2), (3000, 2), (300, 9), (3000, 9)):
        path = tmp_path / f"{count}-{apart}.jsonl"
        path.write_text("".join(f'{{"id":{number}}}\n' for number in range(count)))
        read: list[object] = []
        with monkeypatch.context() as patch:
            for name in ("get", "get_ranges"):
                patch.setattr(LocalStore, name, counting(getattr(LocalStore, name), read))
            assert ps.exclude(path, indices=range(0, count, apart), reason="r").added == -(-count // apart)
        calls[count, apart] = len(read)
        assert [one.key for one in excluded_samples(path).entries] == [*map(str, range(0, count, apart))]
    assert calls[3000, 2] == calls[300, 2]
    assert calls[3000, 9] == calls[300, 9]


def test_many_keys_of_tars_open_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were opened for each key."""
    opened: dict[int, int] = {}
    for count in (4, 40):
        path = tars([{"id": number, "text": "", "meta": {}} for number in range(count)], tmp_path / f"tars{count}")
        opens: list[object] = []
        with monkeypatch.context() as patch:
            for module in (exclude_module, find_module):
                patch.setattr(module, "open_dataset", counting(module.open_dataset, opens))
            keys = np.array([f"k{number}" for number in range(1, count)])  # whose texts are no plain ones
            assert ps.exclude(path, key=keys, reason="r").added == count - 1
        opened[count] = len(opens)
    assert opened[4] == opened[40]


def test_a_list_that_nobody_would_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    take_out(path, 1)
    monkeypatch.setattr(exclude_list, "_MOST_BYTES", 1000)
    with pytest.raises(TooLarge, match="penstock purge"):
        take_out(path, *range(9))
    assert [one.index for one in excluded_samples(path).entries] == [1]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_where_nothing_may_be_written_a_list_goes_elsewhere(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")

    def refuse(lock: str) -> Any:
        raise OSError(number, "not here", lock)

    with monkeypatch.context() as patch:
        patch.setattr(exclude_list, "hold_lock", refuse)
        with pytest.raises(OSError, match=r"not here.*--excludes FILE .*--excludes FILE") as raised:
            take_out(path, 1)
    assert raised.value.filename == f"{path}.penstock.exclude.jsonl"
    assert raised.value.errno == number


def test_lists_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        MAKERS["a.jsonl"](ROWS, tmp_path / "raw" / name)
    take_out(tmp_path / "raw" / "b.jsonl", 0)
    for what in (tmp_path / "raw", str(tmp_path / "raw" / "*.jsonl")):
        both: Any = ps.open(what)
        assert len(both) == 34
        assert both[16]["id"] == 116
        with pytest.raises(Excluded):
            both[17]
    assert ps.merge([tmp_path / "raw"], tmp_path / "out.jsonl").output.samples == 33


# --- many files --------------------------------------------------------------------------------------------------


def test_a_list_of_each_file_where_jsonl_are_one_dataset(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("a.jsonl", "b.jsonl", "c.jsonl.gz"):
        data = "".join(json.dumps({"id": f"{name[0]}{n}", "text": f"t {n}"}) + "\n" for n in range(5)).encode()
        (raw / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    report = ps.exclude(raw, key=["a1", "c3"], reason="r")
    assert (report.added, report.entries, [one.added for one in report.files]) == (2, 2, [1, 1])
    assert sorted(one.name for one in tmp_path.rglob("*exclude*")) == [
        "a.jsonl.penstock.exclude.jsonl",
        "c.jsonl.gz.penstock.exclude.jsonl",
    ]
    link = tmp_path / "link.jsonl"
    link.symlink_to(raw / "a.jsonl")
    opened = {
        raw: [1, 13],
        raw / "a.jsonl": [1],
        f"{raw}/[bc]*": [8],
        link: [1],
        (raw / "b.jsonl", raw / "a.jsonl"): [1],
        (raw / "b.jsonl", link): [1],
    }
    for what, gone in opened.items():
        source: Any = ps.open(list(what) if isinstance(what, tuple) else what)
        assert source.excluded_indices.tolist() == gone, what
    assert ps.merge([raw], tmp_path / "out.jsonl").output.excluded == 2
    assert ps.exclude(f"{raw}/*", indices=[13, 14], reason="r").already == 1
    assert [one.index for one in excluded_samples(raw).entries] == [1, 13, 14]
    assert ps.exclude([raw / "a.jsonl", raw / "b.jsonl"], where="id == 'b0'", reason="r").added == 1
    assert ps.exclude(raw, key="c3", undo=True).removed == 1
    assert ps.exclude(raw, indices=[14], undo=True).removed == 1
    assert ps.exclude(raw, undo=True).entries == 0
    assert not list(tmp_path.rglob("*exclude*"))
    with pytest.raises(NotFound):
        ps.exclude(raw, key=["a1", "nobody"], reason="r")
    assert not list(tmp_path.rglob("*exclude*"))


def test_no_part_of_a_dataset_under_one_list_is_opened_by_another_name(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    for name in ("a.parquet", "b.parquet", "sub/c.parquet"):
        (whole / name).parent.mkdir(parents=True, exist_ok=True)
        MAKERS["a.parquet"](ROWS[:4], whole / name)
    take_out(whole, 1, 6, 11)
    (tmp_path / "link.parquet").symlink_to(whole / "b.parquet")
    one, other = whole / "sub" / "c.parquet", whole / "b.parquet"
    patterns = (f"{whole}/**/*.parquet", f"{whole}/s*/*")
    for what in (one, other, whole / "sub", *patterns, tmp_path, [one, other], tmp_path / "link.parquet"):
        with pytest.raises(ConfigError, match="part of a dataset that has an exclude list"):
            ps.open(what)
    with pytest.raises(ConfigError, match="part of a dataset that has an exclude list"):
        take_out(whole / "sub", 0)
    with pytest.raises(ConfigError, match=r"exclude list.*convert.*whole OUT\.jsonl"):
        ps.pack([whole / "sub"], tmp_path / "c.pbin", tokenizer=TOKENIZER, executor="inline")
    (tmp_path / "whole-link").symlink_to(whole)
    for what in (whole, f"{whole}/", tmp_path / "whole-link"):
        assert ps.open(what).excluded_indices.tolist() == [1, 6, 11]


@pytest.mark.parametrize("suffix", [".jsonl", ".pbin"])
def test_a_list_is_beside_the_file_that_a_link_leads_to(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "there").mkdir()
    path, link = tmp_path / "there" / f"c{suffix}", tmp_path / f"link{suffix}"
    if suffix == ".pbin":
        make_tokens(path, [5, 9, 3])
    else:
        MAKERS["a.jsonl"](ROWS, path)
    link.symlink_to(path)
    take_out(path, 1)
    assert ps.open(link).excluded_indices.tolist() == [1]
    take_out(link, 2)
    assert ps.open(path).excluded_indices.tolist() == [1, 2]
    named = tmp_path / f"link{suffix}.penstock.exclude.jsonl"
    named.write_bytes(b"")
    with pytest.raises(ConfigError, match="next to a link"):
        ps.open(link)


# --- tokens --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pbin", ".idx", ".zarr"])
def test_ids_never_come_out_and_borders_stay(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"c{suffix}"
    make_tokens(path, [5, 9, 3, 12, 7])
    whole: Any = ps.open(path, excludes=NO_LIST)
    take_out(path, 1, 3)
    seen: Any = ps.open(path)
    starts = whole.doc_starts
    hidden = np.zeros(whole.num_tokens, np.bool_)
    for document in (1, 3):
        hidden[starts[document] : starts[document + 1]] = True
    expected = np.where(hidden, 0, whole.tokens(0, whole.num_tokens))
    assert np.array_equal(seen.tokens(0, seen.num_tokens), expected)
    assert np.array_equal(seen.gather(np.array([0, 4, 20]), 8), [expected[n : n + 8] for n in (0, 4, 20)])
    masked: Any = ps.open(path, mask_tokens=9)
    assert set(masked.tokens(0, masked.num_tokens)[hidden].tolist()) == {9}
    joined, taken = ps.Concat([seen, seen]), ps.Take(seen, 1, 4)
    sources = {
        "plain": (seen, whole),
        "joined": (joined, ps.Concat([whole, whole])),
        "part": (taken, ps.Take(whole, 1, 4)),
    }
    for one, other in sources.values():
        for packing in (ps.Chunk(6), ps.Chunk(6, labels="shift"), ps.Chunk(6, labels="start-zero"), ps.Whole(6),
                        ps.Whole(6, labels="start-zero"), ps.BestFit(16),
                        ps.MegatronBlocks(6, labels="shift")):  # fmt: skip
            mine, theirs = packing(one), packing(other)
            assert (len(mine), mine.fingerprint) == (len(theirs), theirs.fingerprint)
            got, want = (side.get_batch(np.arange(len(side))) for side in (mine, theirs))
            for name in ("tokens", "inputs", "targets"):
                if name in got:
                    assert not np.isin(got[name], [11, 13]).any()
            for name in ("segment_ids", "positions", "is_seq_start", "max_seqlen"):
                assert name not in got or np.array_equal(got[name], want[name])
            if "loss_mask" in got:
                in_hidden = np.isin(want["targets"], [11, 13])
                assert not (got["loss_mask"] & in_hidden).any()
            row = mine[len(mine) - 1]
            assert all(np.array_equal(row[name], got[name][-1]) for name in row if name != "max_seqlen")


# --- streams -------------------------------------------------------------------------------------------------------


def test_streams_substitute_and_mark(dataset: Path) -> None:
    whole: Any = ps.open(dataset, excludes=NO_LIST)
    take_out(dataset)
    seen: Any = ps.open(dataset)
    for make in (lambda one: ps.Shuffle(one, 5), ps.Sequential, lambda one: ps.Shuffle(one, 5, mode="blocks")):
        mine, theirs = make(seen), make(whole)
        assert mine.fingerprint == theirs.fingerprint
        for position in range(40):
            index = int(theirs.order_one(position))
            sample, at = mine[position], mine.locate(position)
            assert sample.pop("substituted") == (index in GONE)
            assert at.instead_of == (index if index in GONE else None)
            if index in GONE:
                stand_ins = (int(theirs.order_one(theirs.substitute(position, n))) for n in range(16))
                index = next(one for one in stand_ins if one not in GONE)
            assert at.index == index
            assert str(sample) == str(whole[index])
        batch = mine.get_batch(np.arange(40))
        assert batch["substituted"].tolist() == [mine[p]["substituted"] for p in range(40)]


def test_loaders_substitute_without_being_asked(tmp_path: Path) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    other = MAKERS["a.jsonl"]([{"id": n, "text": "", "meta": {}} for n in range(5)], tmp_path / "b.jsonl")
    take_out(path)
    seen, plain = ps.open(path), ps.open(other)
    blend = ps.Blend({"a": seen, "b": plain}, {"a": 3, "b": 1}, seed=1)
    mapped = ps.Map(blend, _only_id)
    for stream in (blend, mapped):
        by_world = []
        for world in (1, 2, 4):
            loaders = [iter(ps.Loader(stream, 8, rank=r, world=world, workers=0)) for r in range(world)]
            batches = [[next(one) for one in loaders] for _ in range(6)]
            by_world.append([_dealt(step) for step in batches])
        assert by_world[0] == by_world[1] == by_world[2]
        flat = [pair for step in by_world[0] for pair in step]
        assert not {one for one, _ in flat} & {100 + n for n in GONE}
        assert any(mark for _, mark in flat)
        assert not all(mark for _, mark in flat)
    one_pass = list(ps.Loader(seen, 4, rank=0, world=1, tail="pad", workers=0))
    ids = np.concatenate([batch["id"] for batch in one_pass])
    marks = np.concatenate([batch["substituted"] for batch in one_pass])
    assert np.flatnonzero(marks[:17]).tolist() == list(GONE)
    assert [n for n in range(17) if ids[n] != 100 + n] == list(GONE)


def _only_id(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"]}


def _dealt(step: list[Any]) -> list[tuple[int, bool]]:
    rows = [list(zip(one["id"].tolist(), one["substituted"].tolist(), strict=True)) for one in step]
    return [row[place] for place in range(len(rows[0])) for row in rows]


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=2, max_size=8),
    data=st.data(),
    window=st.integers(2, 7),
    seed=st.integers(0, 3),
)
def test_any_list_any_window(
    lengths: list[int], data: st.DataObject, window: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "c.pbin"
    make_tokens(path, lengths)
    gone = data.draw(st.sets(st.integers(0, len(lengths) - 1), min_size=1, max_size=len(lengths) - 1))
    whole: Any = ps.open(path, excludes=NO_LIST)
    take_out(path, *gone)
    seen: Any = ps.open(path)
    if whole.num_tokens <= window:
        return
    for labels in (None, "shift", "start-zero"):
        mine, theirs = (ps.Shuffle(ps.Chunk(window, labels=labels)(one), seed) for one in (seen, whole))
        got, want = (one.get_batch(np.arange(2 * one.size)) for one in (mine, theirs))
        hidden = np.isin(want["tokens"], [10 + n for n in gone])
        assert not np.isin(got["tokens"], [10 + n for n in gone]).any()
        assert np.array_equal(got["tokens"][~hidden], want["tokens"][~hidden])
        if labels is not None:
            assert np.array_equal(got["segment_ids"], want["segment_ids"])
            assert np.array_equal(got["positions"], want["positions"])
    documents = ps.Shuffle(seen, seed)
    found = {int(one["tokens"][0]) for one in (documents[p] for p in range(2 * len(lengths))) if len(one["tokens"]) > 1}
    assert not found & {10 + n for n in gone}


# --- verbs ---------------------------------------------------------------------------------------------------------


def test_verbs_leave_them_out_and_say_how_many(dataset: Path, tmp_path: Path) -> None:
    take_out(dataset)
    out = tmp_path / "out"
    out.mkdir()
    name = dataset.name
    if name != "a.parquet":
        merged = ps.merge([dataset], out / f"m-{name}").output
        assert (merged.samples, merged.excluded) == (14, 3)
        assert len(ps.open(out / f"m-{name}")) == 14
        assert ps.shuffle(dataset, out / f"s-{name}", seed=1).excluded == 3
        parts = ps.split(dataset, out / "parts", ratio=[1, 1], seed=2)
        assert sum(one.samples for one in parts) == 14
    report = ps.convert(dataset, out / "c.jsonl", to="jsonl")
    assert (report.samples, report.excluded) == (14, 3)
    assert not {3, 7, 16} & {json.loads(line)["meta"]["n"] for line in _metas(out / "c.jsonl")}


def _metas(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line for line in lines if isinstance(json.loads(line).get("meta"), dict)]


@pytest.mark.parametrize("workers", [1, 2])
def test_verbs_on_tokens(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "c.pbin"
    documents = make_tokens(path, [5, 9, 3, 12, 7])
    take_out(path, 1, 4)
    kept = [documents[n].tolist() for n in (0, 2, 3)]
    hands = {"workers": workers} if workers > 1 else {}
    ps.merge([path, path], tmp_path / "m.pbin", **hands)
    assert _documents(tmp_path / "m.pbin") == kept * 2
    ps.convert(path, tmp_path / "c.idx", to="megatron")
    assert _documents(tmp_path / "c.idx") == kept
    ps.filter(path, tmp_path / "f.pbin", indices=[1, 2, 3], **hands)
    assert _documents(tmp_path / "f.pbin") == kept[1:]
    ps.shuffle(path, tmp_path / "s.pbin", seed=1, **hands)
    assert sorted(_documents(tmp_path / "s.pbin")) == sorted(kept)
    with pytest.raises(ConfigError, match="there is an exclude list"):
        ps.merge([tmp_path / "m.pbin"], path, overwrite=True)


def _documents(path: Path) -> list[list[int]]:
    source: Any = ps.open(path)
    return [source[n]["tokens"].tolist() for n in range(len(source))]


def test_no_verb_makes_an_index_over_shards_with_a_list(tmp_path: Path) -> None:
    from tests.internals import merge_index

    for name in ("a", "b"):
        MAKERS["mds"](ROWS, tmp_path / "all" / name)
    take_out(tmp_path / "all" / "a")
    with pytest.raises(ConfigError, match="exclude list"):
        merge_index(tmp_path / "all")


def test_a_file_of_a_folder_with_a_list_is_not_opened_alone(tmp_path: Path) -> None:
    from penstock.prepare import pack

    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"some text {n}"}) + "\n" for n in range(9)))
    pack(tmp_path / "a.jsonl", f"{tmp_path}/out/", tokenizer=TOKENIZER, file_tokens=20, executor="inline")
    take_out(tmp_path / "out", 4)
    with pytest.raises(Excluded):
        ps.open(tmp_path / "out")[4]
    part = next((tmp_path / "out").glob("part-*.pbin"))
    with pytest.raises(PenstockError, match="part of a dataset that has an exclude list"):
        ps.open(part)


# --- runs, checks, purge -------------------------------------------------------------------------------------------


def test_a_state_tells_by_which_list_steps_were_read(tmp_path: Path) -> None:
    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    first = ps.Loader(ps.Shuffle(ps.open(path), 3), 4, rank=0, world=1, workers=0)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    assert "excluded" not in state
    read = [int(first._options.data.order_one(p)) for p in range(20)]
    gone = read[5]
    take_out(path, gone)
    stream = ps.Shuffle(ps.open(path), 3)
    resumed = ps.Loader(stream, 4, rank=0, world=1, workers=0)
    assert resumed.load_state_dict(state) == []
    rest = iter(resumed)
    after = [next(rest) for _ in range(2)]
    ids = np.concatenate([one["id"] for one in after]).tolist()
    assert ids == [100 + n if n != gone else ids[at] for at, n in enumerate(read[12:20])]
    state = json.loads(json.dumps(resumed.state_dict()))
    assert [row[0] for row in state["excluded"]] == [12]

    from tests.internals import explain_excluded, explain_step, run_of

    run = run_of(stream, None, None, state)
    found = explain_excluded(run, 10)
    assert found["steps"] == [1]
    assert [(row["position"], row["index"]) for row in found["samples"]] == [(5, gone)]
    then = {row["position"]: row for row in explain_step(run, 1)["samples"]}
    assert then[5]["index"] == gone
    assert "instead_of" not in then[5]


def test_info_and_verify_know_the_list(tmp_path: Path) -> None:
    from penstock.check import summarise

    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    take_out(path)
    assert summarise(path)["excluded"] == 3
    assert ps.verify(path) == [one for one in ps.verify(path) if "exclude" not in one.code]
    listed = tmp_path / "a.jsonl.penstock.exclude.jsonl"
    listed.write_bytes(listed.read_bytes()[:-5])
    assert [one.path for one in ps.verify(path) if one.code.endswith(".exclude-list")] == [str(listed)]


def test_purge_leaves_what_is_kept_and_a_certificate(dataset: Path, tmp_path: Path) -> None:
    from tests.internals import purge

    take_out(dataset)
    name = "new.jsonl" if dataset.suffix == ".parquet" else f"new{dataset.suffix}"
    report = purge(dataset, tmp_path / name)
    assert (report.samples, report.removed) == (14, 3)
    certificate = json.loads((tmp_path / f"{name}.certificate.json").read_text())
    assert [one["index"] for one in certificate["removed"]] == list(GONE)
    assert certificate["output"]["digest"] == report.digest_after != report.digest_before
    assert ps.diff(tmp_path / name, dataset).equal, "what is excluded is no part of what is compared"
    with pytest.raises(ConfigError, match="exists"):
        purge(dataset, tmp_path / name)
    (tmp_path / f"{name}.certificate.json").unlink()  # as where it was killed before
    assert purge(dataset, tmp_path / name).digest_after == report.digest_after


def test_a_certificate_has_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list's was as it was typed, and meant nothing in another folder."""
    from tests.internals import purge

    take_out(MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl"))
    monkeypatch.chdir(tmp_path)
    purge("a.jsonl", "new.jsonl")
    told = json.loads((tmp_path / "new.jsonl.certificate.json").read_bytes())
    assert told["lists"][0]["path"] == f"{told['source']['path']}.penstock.exclude.jsonl"
    assert told["source"]["path"] == str(tmp_path / "a.jsonl")


def test_what_was_packed_from_it(tmp_path: Path) -> None:
    from penstock.prepare import pack

    for name in ("a.jsonl", "b.jsonl"):
        text = "".join(json.dumps({"id": n, "text": f"some text {name} {n}"}) + "\n" for n in range(6))
        (tmp_path / name).write_text(text)
    pack([tmp_path], tmp_path / "c.pbin", tokenizer=TOKENIZER, executor="inline")
    report = ps.exclude(tmp_path / "b.jsonl", key="2", reason="r", also=[tmp_path / "c.pbin"])
    assert [one.added for one in report.also] == [1]
    assert [one.index for one in excluded_samples(tmp_path / "c.pbin").entries] == [8]
    ps.shuffle(tmp_path / "c.pbin", tmp_path / "s.pbin", seed=1)
    with pytest.raises(ConfigError, match="unknown which documents"):
        ps.exclude(tmp_path / "b.jsonl", key="3", reason="r", also=[tmp_path / "s.pbin"])
    assert [one.index for one in excluded_samples(tmp_path / "b.jsonl").entries] == [2], "nothing is half done"


def test_the_peers_classes_are_safe(tmp_path: Path) -> None:
    from penstock.compat.modalities import EmbeddedStreamData, PackedMemMapDatasetContinuous

    path = tmp_path / "c.pbin"
    make_tokens(path, [5, 9, 3, 12, 7])
    take_out(path, 1)
    windows = PackedMemMapDatasetContinuous(path, "t", 4, True)
    assert not any((windows[n]["t"] == 11).any() for n in range(len(windows)))
    with pytest.raises(ConfigError, match="exclude list"):
        EmbeddedStreamData(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_pack_leaves_out_what_is_excluded(tmp_path: Path, name: str) -> None:
    from penstock.prepare import pack

    data = "".join(json.dumps({"id": n, "text": f"word{n} " * 9}) + "\n" for n in range(60)).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    kept = b"".join(line for n, line in enumerate(data.splitlines(keepends=True)) if n not in (0, 31, 59))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.jsonl").write_bytes(kept)
    how: dict[str, Any] = {"tokenizer": TOKENIZER, "executor": "inline", "task_bytes": 300}
    before = pack(tmp_path / name, tmp_path / "all.pbin", **how)
    take_out(tmp_path / name, 0, 31, 59)
    report = pack(tmp_path / name, tmp_path / "out.pbin", **how)
    assert (before.documents, report.documents, report.excluded) == (60, 57, 3)
    pack(tmp_path / "kept" / "a.jsonl", tmp_path / "same.pbin", **how)
    assert (tmp_path / "out.pbin").read_bytes() == (tmp_path / "same.pbin").read_bytes()
    with pytest.raises(ConfigError, match="unknown which documents"):
        ps.exclude(tmp_path / name, key="7", reason="r", also=[tmp_path / "out.pbin"])
    pack(tmp_path / name, tmp_path / "map.pbin", keep_map=True, **how)
    if name == "a.jsonl":
        ps.exclude(tmp_path / name, key="7", reason="r", also=[tmp_path / "map.pbin"])
        assert [one.index for one in excluded_samples(tmp_path / "map.pbin").entries] == [6]
    MAKERS["a.parquet"](ROWS, tmp_path / "p.parquet")
    take_out(tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match="exclude list"):
        pack(tmp_path / "p.parquet", tmp_path / "p.pbin", **how)


def test_energon_gets_substitutes(tmp_path: Path) -> None:
    from penstock.compat.energon import (
        Cooker,
        DefaultTaskEncoder,
        TextSample,
        WorkerConfig,
        basic_sample_keys,
        get_loader,
        get_train_dataset,
        stateless,
    )

    @stateless
    def cook(sample: dict[str, Any]) -> TextSample:
        return TextSample(**basic_sample_keys(sample), text=sample["text"])

    class Encoder(DefaultTaskEncoder):
        cookers = (Cooker(cook),)

    tars(ROWS, tmp_path / "t")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"batch_size": None, "shuffle_buffer_size": None, "max_samples_per_sequence": None}

    def keys() -> list[str]:
        dataset = get_train_dataset(str(tmp_path / "t"), worker_config=config, task_encoder=Encoder(), **options)
        run = iter(get_loader(dataset))
        return [next(run).__key__ for _ in range(34)]

    before = keys()
    take_out(tmp_path / "t")
    after = keys()
    gone = {f"k{100 + n}" for n in GONE}
    assert gone <= set(before)
    assert not gone & set(after)
    pairs = zip(before, after, strict=True)
    assert all(old == new for old, new in pairs if old not in gone)


def test_cooked_joined_and_with_stores(tmp_path: Path) -> None:
    tars(ROWS, tmp_path / "t")
    take_out(tmp_path / "t")
    source = ps.open(tmp_path / "t")
    with pytest.raises(Excluded):
        source.get("k103.text")
    for made in (ps.WithAux(source, more=source), ps.Map(source, _keyed), ps.Join({"a": source, "b": source})):
        stream = ps.Shuffle(made, 2)
        assert made.excluded_indices.tolist() == list(GONE)
        assert not {"k103", "k107", "k116"} & {stream[p]["__key__"] for p in range(34)}
    tail = ps.Shuffle(ps.Concat([source, source]), 1)
    assert not {"k103", "k107", "k116"} & {tail[p]["__key__"] for p in range(68)}


def _keyed(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": sample["__key__"]}


def test_streaming_gets_substitutes(tmp_path: Path) -> None:
    from penstock.compat.streaming import StreamingDataset

    MAKERS["mds"](ROWS, tmp_path / "mds")
    how: dict[str, Any] = {"local": str(tmp_path / "mds"), "batch_size": 2, "shuffle": True}
    before = [one["id"] for one in StreamingDataset(**how)]
    take_out(tmp_path / "mds")
    dataset = StreamingDataset(**how)
    after = [one["id"] for one in dataset]
    gone = {100 + n for n in GONE}
    assert [old == new for old, new in zip(before, after, strict=True)] == [old not in gone for old in before]
    assert not gone & set(after)
    order = dataset.order()
    assert [order[p]["id"] for p in range(17)] == order.get_batch(np.arange(17))["id"].tolist()


def test_tars_of_several_splits_are_purged_a_split_at_a_time(tmp_path: Path) -> None:
    from tests.internals import purge

    tars = tmp_path / "tars"
    tars.mkdir()
    for number in range(4):
        with tarfile.open(tars / f"s{number}.tar", "w") as tar:
            for sample in range(5):
                about = tarfile.TarInfo(f"k{number}{sample}.txt")
                about.size = 1
                tar.addfile(about, io.BytesIO(b"%d" % sample))
    ps.prepare(tars, split_ratio=(1, 1, 0))
    for split in ("train", "val"):
        ps.exclude(tars, indices=[3], reason="asked for", split=split)
    with pytest.raises(ConfigError, match=r"excludes samples of several splits.*found train, val.*--split"):
        purge(tars, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = purge(tars, tmp_path / "out", split="val")
    told = json.loads(Path(report.certificate).read_bytes())
    assert (report.samples, told["split"], [one["split"] for one in told["removed"]]) == (9, "val", ["val"])
    assert (len(ps.open(tmp_path / "out", split="val")), len(ps.open(tmp_path / "out", split="train"))) == (9, 0)


def test_what_was_made_of_the_folder_of_a_file(tmp_path: Path) -> None:
    """The side file names the folder; the file's lines are known among those of all."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("a", "b"):
        lines = "".join(json.dumps({"id": f"{name}{n}"}) + "\n" for n in range(5))
        (raw / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    ps.filter(raw, tmp_path / "f.jsonl", where='id != "a3"', keep_map=True)
    (tmp_path / "none.jsonl").write_text('{"text": "no key"}\n')
    report = ps.exclude(raw / "b.jsonl.gz", key="b1", reason="r", also=[tmp_path / "f.jsonl"])
    assert [one.added for one in report.also] == [1]
    with pytest.raises(Excluded):
        ps.open(tmp_path / "f.jsonl")[5]
    (raw / "a.jsonl.gz").write_bytes(gzip.compress(b'{"id": "other"}\n'))  # the lines of b are others now
    report = ps.exclude(raw / "b.jsonl.gz", key="b2", reason="r", also=[tmp_path / "f.jsonl"])
    assert [one.added for one in report.also] == [1], "by its key, as the lineage is of other lines"
    with pytest.raises(Excluded):
        ps.open(tmp_path / "f.jsonl")[6]
    with pytest.raises(ConfigError, match="unknown which documents"):
        ps.exclude(raw / "b.jsonl.gz", indices=[0], reason="r", also=[tmp_path / "none.jsonl"])


def test_a_folder_of_jsonl_is_purged_while_a_run_reads_it(tmp_path: Path) -> None:
    from tests.internals import purge

    raw = tmp_path / "raw"
    raw.mkdir()
    for name in ("a", "b"):
        (raw / f"{name}.jsonl").write_text("".join(json.dumps({"id": f"{name}{n}"}) + "\n" for n in range(5)))
    ps.exclude(raw, key=["a1", "b4"], reason="ticket")
    stream = ps.Shuffle(ps.open(raw), 1)
    read = [stream[position]["id"] for position in range(20)]
    report = purge(raw, tmp_path / "clean.jsonl")
    told = json.loads(Path(report.certificate).read_bytes())
    assert [(one["index"], one["key"]) for one in told["removed"]] == [(1, "a1"), (9, "b4")]
    lists = [str(raw / f"{name}.jsonl.penstock.exclude.jsonl") for name in ("a", "b")]
    assert [(one["path"], one["entries"]) for one in told["lists"]] == [(path, 1) for path in lists]
    assert (report.samples, [one["id"] for one in ps.open(tmp_path / "clean.jsonl")]) == (8, sorted({*read}))
    assert [stream[position]["id"] for position in range(20)] == read
    assert not ps.verify(raw, depth="full")
    assert not ps.verify(tmp_path / "clean.jsonl", depth="full")


def test_a_list_that_was_named_is_named_by_the_recipe(tmp_path: Path) -> None:
    path, listed = tmp_path / "c.pbin", tmp_path / "list.jsonl"
    make_tokens(path, [5, 9, 3])
    take_out(path, 1, list=listed)
    recipe = ps.open(path, excludes=str(listed), mask_tokens=7).recipe()
    assert (recipe["excludes"], recipe["mask_tokens"]) == (str(listed), 7)
    take_out(path, 2)
    assert "excludes" not in ps.open(path).recipe(), "one that is found beside the data"


def test_a_list_far_away_is_named_before_anything_is_copied_on(tmp_path: Path) -> None:
    from penstock.testing import FileServer

    path = MAKERS["a.jsonl"](ROWS, tmp_path / "a.jsonl")
    take_out(path, 3)
    names = ("a.jsonl", "a.jsonl.penstock.exclude.jsonl")
    with FileServer({name: (tmp_path / name).read_bytes() for name in names}) as server:
        url, listed = (f"{server.url.rstrip('/')}/{name}" for name in names)
        how: dict[str, Any] = {"tokenizer": TOKENIZER, "executor": "inline"}
        verbs = (
            lambda **given: ps.merge([url], tmp_path / "m.jsonl", **given).output,
            lambda **given: ps.convert(url, tmp_path / "mds", to="mds", columns={"id": "int"}, **given),
            lambda **given: ps.pack([url], tmp_path / "c.pbin", **how, **given),
        )
        for verb in verbs:
            with pytest.raises(ConfigError, match="there is an exclude list next to"):
                verb()
            assert verb(excludes=listed).excluded == 1
        assert ps.open(url, excludes=listed).recipe()["excludes"] == listed


def commanded(capsys: pytest.CaptureFixture[str], *said: object) -> tuple[int, str]:
    from tests.internals import main

    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in said])
    found = capsys.readouterr()
    return int(ended.value.code or 0), found.out + found.err


READS = (  # what a verb says of the list that is named, of one that is not there, and of one that is cut
    ("head @ --index 3", 0, "is excluded (asked for)"),
    ("info @", 0, "3, in"),
    ("verify @ --depth full", 0, "0 errors"),
    ("head @ --index 3 --pictures", 0, "is excluded (asked for)"),
    ("find @ --where n==3", 0, ", excluded"),
)


@pytest.mark.parametrize("where", ["here", "far away"])
@pytest.mark.parametrize(("said", "status", "words"), READS)
def test_what_reads_takes_a_list_that_is_named(
    said: str, status: int, words: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from penstock.testing import FileServer

    path, listed = tmp_path / "a.jsonl", tmp_path / "takedown.txt"
    path.write_text("".join(json.dumps({"n": n, "text": f"text {n}"}) + "\n" for n in range(17)))
    take_out(path, list=listed)
    cut = listed.with_name("cut.txt")
    cut.write_bytes(listed.read_bytes()[:-9])
    with FileServer({one.name: one.read_bytes() for one in (path, listed, cut)}) as server:
        base = str(tmp_path) if where == "here" else server.url.rstrip("/")
        verb = [one.replace("@", f"{base}/a.jsonl") for one in said.split()]
        ended, output = commanded(capsys, *verb, "--excludes", f"{base}/takedown.txt")
        assert (ended, words in output) == (status, True), output
        ended, output = commanded(capsys, *verb, "--excludes", f"{base}/none.txt")
        assert (ended, "none.txt" in output) == (NotFound.exit_status, True), output
        ended, output = commanded(capsys, *verb, "--excludes", f"{base}/cut.txt")
        cut_status = 1 if verb[0] == "verify" else Corrupt.exit_status
        assert (ended, "the exclude list can't be read" in output) == (cut_status, True), output


def test_a_diff_by_lists_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (MAKERS[name](ROWS, tmp_path / name) for name in ("a.jsonl", "mds"))
    lists = [tmp_path / "a.list", tmp_path / "b.list"]
    for path, listed in zip((one, other), lists, strict=True):
        take_out(path, list=listed)
    both = ["--excludes-a", lists[0], "--excludes-b", lists[1]]
    assert commanded(capsys, "diff", one, other, *both, "--json")[0] == 0
    ended, output = commanded(capsys, "diff", one, other, *both[:2], "--as", "set", "--json")
    assert (ended, json.loads(output)["only_in_a"], json.loads(output)["only_in_b"]) == (1, 0, 3)
    ended, output = commanded(capsys, "diff", one, other, "--excludes-a", lists[1])
    assert (ended, "belongs to" in output) == (Corrupt.exit_status, True)


@pytest.mark.parametrize("is_named", [True, False])
def test_files_of_excluded_samples_are_not_mounted(is_named: bool, tmp_path: Path) -> None:
    from tests.internals import open_files

    folder, listed = tars(ROWS, tmp_path / "tars"), tmp_path / "list"
    take_out(folder, **({"list": listed} if is_named else {}))
    whole = {f"k{100 + n}" for n in range(17)}
    found = open_files(folder, by_sample=True, excludes=listed if is_named else None)
    assert {*found.readdir("/")} - {".", ".."} == whole - {"k103", "k107", "k116"}


def test_purge_counts_what_it_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lines(ROWS, tmp_path / "a.jsonl")
    take_out(path, 1, 3)
    status, output = commanded(capsys, "purge", path, "-o", tmp_path / "b.jsonl")
    assert status == 0
    assert f"b.jsonl: {len(ROWS) - 2} samples, 2 removed; " in output
