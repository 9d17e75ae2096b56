"""`diff`: by digests that do not depend on the format, held against brute force."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tests.cli.called import called
from tests.internals import main, sample_digest
from tests.look.datasets import MAKERS, lines, tars

import penstock as ps
from penstock.errors import ConfigError, PenstockError
from penstock.look import diff as compare
from penstock.look import samples
from penstock.testing import FileServer, MemorySource

ROWS: list[dict[str, Any]] = [
    {"id": n, "text": f"gr\u00fc\u00dfe {n % 5}", "meta": {"lang": "de", "n": n % 4}} for n in range(13)
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    return {name: make(ROWS, folder / name) for name, make in MAKERS.items()}


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(MAKERS, 2)))
def test_equal_across_formats(a: str, b: str, made: dict[str, Path], tmp_path: Path) -> None:
    report = ps.diff(made[a], made[b])
    assert (report.equal, report.only_in_a, report.only_in_b, report.first_differences) == (True, 0, 0, ())
    assert report.by == "samples"
    other = [*ROWS[:4], ROWS[4] | {"text": "another"}, *ROWS[5:9], ROWS[10], ROWS[9], *ROWS[11:12]]
    changed = MAKERS[b](other, tmp_path / b)
    found = ps.diff(made[a], changed)
    assert (found.equal, found.only_in_a, found.only_in_b) == (False, 2, 1)
    places = [(one.index_a, one.index_b, one.fields) for one in found.first_differences]
    assert places == [(4, 4, ("text",)), (12, None, ())]
    assert found.first_differences[0].b == {"text": "another"}
    as_set = ps.diff(made[a], changed, compare_as="set")
    assert (as_set.only_in_a, as_set.only_in_b) == (2, 1)
    assert [(one.index_a, one.index_b) for one in as_set.first_differences] == [(4, None), (12, None), (None, 4)]


@settings(max_examples=100, deadline=None)
@given(
    a=st.lists(st.integers(0, 12), max_size=40),
    b=st.lists(st.integers(0, 12), max_size=40),
    part=st.integers(1, 9),
    run=st.integers(1, 9),
)
def test_the_comparison_against_brute_force(a: list[int], b: list[int], part: int, run: int) -> None:
    spread = np.array([random.Random(n).getrandbits(64) for n in range(26)], np.uint64).reshape(-1, 2)
    spread[5] = (spread[4][0], spread[5][1])  # digests whose upper halves are equal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "_PART", part)
        patch.setattr(compare, "_RUN", run)
        found = compare.compare_as_sets(spread[np.array(a, int)], spread[np.array(b, int)], 10)
        ordered = compare.compare_in_order(spread[np.array(a, int)], spread[np.array(b, int)], 10)
    in_a, in_b = Counter(a), Counter(b)
    assert (found.only_in_a, found.only_in_b) == ((in_a - in_b).total(), (in_b - in_a).total())
    assert found.first_in_a.tolist() == sorted(a.index(one) for one in in_a - in_b)[:10]
    assert found.first_in_b.tolist() == sorted(b.index(one) for one in in_b - in_a)[:10]
    differing = [n for n, (one, other) in enumerate(itertools.zip_longest(a, b)) if one != other]
    assert ordered.first_in_a.tolist() == [n for n in differing if n < len(a)][:10]
    assert ordered.first_in_b.tolist() == [n for n in differing if n < len(b)][:10]
    assert (ordered.only_in_a, ordered.only_in_b) == tuple(sum(n < len(x) for n in differing) for x in (a, b))


def test_many_equal_samples_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_PART", 1 << 12)
    monkeypatch.setattr(compare, "_RUN", 1 << 10)
    most = 0
    reduced = vars(compare)["_reduced"]

    def counted(parts: Any) -> Any:
        nonlocal most
        most = max(most, sum(len(one.digests) for one in parts))
        return reduced(parts)

    monkeypatch.setattr(compare, "_reduced", counted)
    same = np.full((1 << 16, 2), 7, np.uint64)
    found = compare.compare_as_sets(same, same[:-5], 10)
    assert (found.only_in_a, found.only_in_b, found.first_in_a.tolist()) == (5, 0, [0])
    assert most <= (1 << 12) + (1 << 10) + 1, "never all of them in memory"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(a=st.dictionaries(st.sampled_from("ab"), VALUES), b=st.dictionaries(st.sampled_from("ab"), VALUES))
def test_digests_are_equal_where_values_are(a: dict[str, Any], b: dict[str, Any]) -> None:
    def plain(value: Any) -> Any:  # Python's True == 1 is no equality of data
        if isinstance(value, bool):
            return ("bool", value)
        if isinstance(value, list):
            return [plain(one) for one in value]
        return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value

    def without_none(row: dict[str, Any]) -> Any:
        return {name: plain(value) for name, value in row.items() if value is not None}

    same = sample_digest(a, with_keys=True) == sample_digest(b, with_keys=True)
    assert same == (without_none(a) == without_none(b))


def test_arrays_bytes_and_numbers_are_what_they_hold() -> None:
    def one(value: Any, name: str = "a") -> bytes:
        return sample_digest({name: value}, with_keys=True)

    assert one(np.array([1, 2], "u2")) == one([1, 2]) == one(np.array([1.0, 2.0])) != one([[1, 2]])
    assert one("text") == one(b"text") != one(["text"])
    assert one(np.int64(3)) == one(3.0) == one(3) != one("3")
    assert one(b'{"x": 1.0}', "b.json") == one({"x": 1}, "b.json") != one(b'{"x": 1.0}')
    assert sample_digest({"a": "bc"}, with_keys=True) != sample_digest({"ab": "c"}, with_keys=True)
    assert sample_digest({"a": "b", "__key__": "x"}, with_keys=False) == one("b")
    with pytest.raises(PenstockError, match="sample at index 1 can't be compared"):
        ps.diff(MemorySource([{"a": 1}, {"a": object()}]), MemorySource([{"a": 1}]))


def tokens(path: Path, documents: list[list[int]], format: str, **options: Any) -> Path:
    with ps.create(path, format=format, eos_id=0, **options) as writer:
        for one in documents:
            writer.write({"tokens": np.array(one, np.uint32)})
    return path


def test_documents_by_their_ids_in_any_width_and_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [[*range(1, 2 + n % 7), 0] for n in range(40)]
    made = [
        tokens(tmp_path / "a.pbin", documents, "pbin", token_bytes=2),
        tokens(tmp_path / "b.pbin", documents, "pbin", token_bytes=4),
        tokens(tmp_path / "c.bin", documents, "megatron", token_bytes=2),
        tokens(tmp_path / "d.zarr", documents, "flat-tokens"),
    ]
    for path in made[1:]:
        report = ps.diff(made[0], path)
        assert (report.equal, report.by) == (True, "side files"), "nothing is read"
    for side in tmp_path.glob("*.penstock"):
        side.unlink()
    monkeypatch.setattr(samples, "RUN_TOKENS", 5)
    for path in made[1:]:
        report = ps.diff(made[0], path)
        assert (report.equal, report.by) == (True, "samples")
    other = tokens(tmp_path / "e.pbin", [*documents[:7], [9, 0], *documents[8:]], "pbin", token_bytes=2)
    found = ps.diff(made[3], other)
    assert [(one.index_a, one.index_b) for one in found.first_differences] == [(7, 7)]
    # Borders count: the same ids in other documents are other samples.
    joined = tokens(tmp_path / "f.pbin", [documents[0] + documents[1], *documents[2:]], "pbin", token_bytes=2)
    assert ps.diff(made[0], joined, compare_as="set").only_in_a == 2
    with pytest.raises(ConfigError, match="can't be compared"):
        ps.diff(made[0], lines(ROWS, tmp_path / "a.jsonl"))


def test_tars_and_shards_keys_where_both_have_them(made: dict[str, Path], tmp_path: Path) -> None:
    first = tars(ROWS, tmp_path / "a")
    again = tars([*ROWS[:2], ROWS[2] | {"id": 99}, *ROWS[3:]], tmp_path / "b")
    assert [one.fields for one in ps.diff(first, again).first_differences] == [("__key__",)]
    plain = MemorySource([{"text": row["text"], "meta.json": row["meta"]} for row in ROWS])
    assert ps.diff(again, plain).equal, "one side has no keys"
    report = ps.diff(first, made["a.jsonl"])
    assert not report.equal
    assert (set(report.schema.a), set(report.schema.b)) == ({"__key__", "meta.json", "text"}, {"id", "meta", "text"})


def test_the_command(made: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as ended:
            main(["diff", *map(str, arguments)])
        return ended.value.code, capsys.readouterr().out

    assert run(made["mds"], made["a.jsonl"]) == (0, "equal: 13 samples\n")
    other = lines(list(reversed(ROWS)), tmp_path / "a.jsonl")
    assert run(made["mds"], other, "--as", "set", "--workers", 1)[0] == 0
    code, out = run(made["mds"], other)
    assert (code, out.splitlines()[0]) == (1, "same samples, different order: 12 of 13 positions differ")
    subset = lines([row for row in ROWS if row["id"] not in (2, 5, 6)], tmp_path / "b.jsonl")
    code, out = run(made["mds"], subset)
    assert (code, out.splitlines()[0]) == (1, "3 of 13 samples of A are missing from B")
    code, out = run(subset, made["mds"])
    assert (code, out.splitlines()[0]) == (1, "3 of 13 samples of B are missing from A")
    code, out = run(made["mds"], other, "--json")
    assert code == 1
    assert '"first_differences"' in out


def test_empty_datasets_are_equal() -> None:
    assert ps.diff(MemorySource([]), MemorySource([]), compare_as="set").equal


@pytest.mark.parametrize("times", [1, 10])
def test_requests_do_not_grow_with_samples(times: int, tmp_path: Path) -> None:
    path = lines(ROWS * times, tmp_path / "a.jsonl")
    with FileServer({"a.jsonl": path.read_bytes()}) as server:
        assert ps.diff(f"{server.url}/a.jsonl", path).equal
        assert len(server.gets()) <= 12


def test_columns_that_became_parts_of_tars_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ps.create(tmp_path / "mds", format="mds", columns={"id": "int", "w": "float64"}) as writer:
        for number in range(3):
            writer.write({"id": number, "w": number / 2})
    ps.convert(tmp_path / "mds", tmp_path / "tars", to="webdataset")
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(tmp_path / "mds"), str(tmp_path / "tars")])
    told = capsys.readouterr().out
    assert ended.value.code == 1
    assert "w is the part w.json in tars: `penstock convert TARS NEW --to mds`" in told
    assert "w: 0.5" in told
    ps.convert(tmp_path / "tars", tmp_path / "back", to="mds")
    assert ps.diff(tmp_path / "mds", tmp_path / "back").equal


def _write_masked(path: Path, masks: list[list[int]] | None, ids: list[list[int]]) -> Path:
    planes = None if masks is None else {"loss_mask": "uint8"}
    with ps.create(path, format="pbin", token_bytes=2, planes=planes) as writer:
        for number, row in enumerate(ids):
            mask = {} if masks is None else {"loss_mask": np.array(masks[number], np.uint8)}
            writer.write({"tokens": np.array(row, np.uint16), **mask})
    return path


@pytest.mark.parametrize("compare_as", ["sequence", "set"])
@pytest.mark.parametrize("side_files", [True, False])
def test_planes_of_tokens_count(tmp_path: Path, compare_as: Any, side_files: bool) -> None:
    ids, masks = [[1, 2, 3], [4, 5], [6]], [[0, 1, 1], [0, 1], [1]]
    masked = _write_masked(tmp_path / "masked.pbin", masks, ids)
    same = _write_masked(tmp_path / "same.pbin", masks, ids)
    other = _write_masked(tmp_path / "other.pbin", [[0, 1, 1], [0, 0], [1]], ids)
    bare = _write_masked(tmp_path / "bare.pbin", None, ids)
    if not side_files:
        for path in tmp_path.glob("*.penstock"):
            path.unlink()
    assert ps.diff(masked, same, compare_as=compare_as).equal
    found = ps.diff(masked, bare, compare_as=compare_as)
    assert (found.equal, found.planes_only_in_a, found.planes_only_in_b) == (False, ("loss_mask",), ())
    assert (found.only_in_a, found.only_in_b) == (0, 0)
    found = ps.diff(bare, masked, compare_as=compare_as)
    assert (found.equal, found.planes_only_in_a, found.planes_only_in_b) == (False, (), ("loss_mask",))
    assert ps.diff(masked, bare, compare_as=compare_as, planes=None).equal

    found = ps.diff(masked, other, compare_as=compare_as)
    assert (found.equal, found.only_in_a, found.only_in_b) == (False, 1, 1)
    assert found.first_differences[0].index_a == 1
    assert ps.diff(masked, other, compare_as=compare_as, planes=None).equal


def test_the_command_names_the_missing_plane(tmp_path: Path) -> None:
    masked = _write_masked(tmp_path / "masked.pbin", [[0, 1]], [[1, 2]])
    bare = _write_masked(tmp_path / "bare.pbin", None, [[1, 2]])
    done = called("diff", masked, bare)
    assert done.returncode == 1
    assert "planes only in A: loss_mask" in done.stdout
    assert called("diff", masked, bare, "--planes", "none").returncode == 0


def test_times_are_compared(tmp_path: Path) -> None:
    """A table with dates and times equals the lines that hold them as text, and differs from later ones."""
    first = dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC)

    def write(name: str, at: dt.datetime) -> Path:
        columns = {"at": [at, None], "day": [at.date()] * 2, "time": [at.time()] * 2, "all": [[at], []]}
        parquet.write_table(pa.table({"id": [0, 1], **columns, "took": [dt.timedelta(1, 2, 3)] * 2}), tmp_path / name)
        return tmp_path / name

    a, b = write("a.parquet", first), write("b.parquet", first + dt.timedelta(microseconds=1))
    assert ps.diff(a, a).equal
    found = ps.diff(a, b)
    assert [one.fields for one in found.first_differences] == [("all", "at", "time"), ("time",)]
    texts = [
        {"id": 0, "at": first.isoformat(), "day": "2026-01-02", "time": "03:04:05.000678", "all": [first.isoformat()]},
        {"id": 1, "at": None, "day": "2026-01-02", "time": "03:04:05.000678", "all": []},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts), "utf-8")
    parquet.write_table(parquet.read_table(a).drop_columns(["took"]), tmp_path / "d.parquet")
    assert ps.diff(tmp_path / "c.jsonl", tmp_path / "d.parquet").equal
