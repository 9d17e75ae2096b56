"""Samples between all formats: equal on the other side, the same bytes for any number of workers, kill or restart."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.internals import (
    Place,
    RunOptions,
    SourceRows,
    code_of,
    code_to_set,
    current,
    plan_samples,
    replace,
    verify_samples,
    waiting_files,
    work_beside,
    work_name,
    write_samples,
)
from tests.internals import understand_conversion as understand

import penstock as ps
from penstock.convert import merge_partitions, write_partition
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, Unsupported
from penstock.store import MemoryStore
from penstock.testing.equality import same_samples
from penstock.types import Sample

TEXTUAL = ("csv", "tsv", "json-shards", "jsonl", "mds", "webdataset", "folder")
ADDED = ("__key__", "__restore_key__", "__sources__", "__subflavors__")
WORDS = st.text(st.characters(exclude_characters=",\t\r\n|", exclude_categories=("Cs",)), max_size=8)


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (6, 5), (number * 7 % 256, 0, 90)).save(file, "JPEG", quality=60)
    return file.getvalue()


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


def convert(source: Any, target: Path, **options: Any) -> Any:
    return ps.convert(source, target, executor="inline", **options)


def read(path: Path) -> list[Sample]:
    return list(ps.open(path))


def put_webdataset(path: Path, n_rows: int = 40) -> list[Sample]:
    rows = [
        {"__key__": f"d/s{number:03d}", "jpg": jpeg(number), "txt": f"é {number}", "json": {"n": [number, None, 0.5]},
         "cls": number % 7}
        for number in range(n_rows)
    ]  # fmt: skip
    with ps.create(path, format="webdataset", maxcount=15) as writer:
        for row in rows:
            writer.write(row)
    return rows


def stored(path: Path) -> list[Sample]:
    """Samples as stored, without what the reader adds."""
    return [
        {name: value for name, value in sample.items() if name not in ADDED[1:]} for sample in ps.open(path, raw=True)
    ]


# --- every pair --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", TEXTUAL)
def test_round_trips_between_every_pair(tmp_path_factory: pytest.TempPathFactory, first: str) -> None:
    @settings(deadline=None, max_examples=2, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.fixed_dictionaries({
        "text": WORDS, "n": st.integers(-(1 << 40), 1 << 40), "x": st.floats(allow_nan=False)
    }), min_size=1, max_size=6))  # fmt: skip
    def law(rows: list[Sample]) -> None:
        base = tmp_path_factory.mktemp("pair")
        convert(iter(rows), base / "a", to=first)
        for second in TEXTUAL:
            there, back = base / f"to-{second}", base / f"from-{second}"
            convert(base / "a", there, to=second, format=first, group_rows=2)
            report = convert(there, back, to="jsonl", format=second)
            found = [
                {name: value for name, value in one.items() if name not in ADDED}
                for one in ps.open(back, format="jsonl")
            ]
            assert found == rows, second
            assert report.samples == len(rows)
            assert hidden(base) == []

    law()


def test_images_are_kept_byte_for_byte(tmp_path: Path) -> None:
    rows = put_webdataset(tmp_path / "w")
    before = stored(tmp_path / "w")
    for to, name in (("mds", "m"), ("folder", "f"), ("webdataset", "w2")):
        convert(tmp_path / "w", tmp_path / name, to=to)
        convert(tmp_path / name, tmp_path / f"{name}-back", to="webdataset")
        assert stored(tmp_path / f"{name}-back") == before
    shards: Any = ps.open(tmp_path / "m")
    assert shards.details()["columns"] == {
        "__key__": "str", "cls": "str_int", "jpg": "jpeg", "json": "json", "txt": "str"
    }  # fmt: skip
    assert [one["__key__"] for one in shards] == [row["__key__"] for row in rows]
    assert ps.open(tmp_path / "m", raw=True)[3]["jpg"] == jpeg(3)


def test_columns_get_extensions_and_lose_them(tmp_path: Path) -> None:
    columns = {"img": "jpeg", "label": "int", "meta": "json", "vec": "ndarray:float32", "raw": "bytes", "p": "pkl"}
    rows = [
        {"img": jpeg(number), "label": number, "meta": [number], "vec": np.arange(3, dtype=np.float32) + number,
         "raw": bytes([number]), "p": {1, number}}
        for number in range(9)
    ]  # fmt: skip
    with ps.create(tmp_path / "m", format="mds", columns=columns) as writer:
        for row in rows:
            writer.write(row)
    convert(tmp_path / "m", tmp_path / "w", to="webdataset")
    assert list(stored(tmp_path / "w")[0]) == [
        "__key__", "img.jpg", "label.cls", "meta.json", "p.pkl", "raw.bin", "vec.npy"
    ]  # fmt: skip
    convert(tmp_path / "w", tmp_path / "m2", to="mds")
    there, back = stored(tmp_path / "m"), stored(tmp_path / "m2")
    for name in ("img", "meta", "raw", "p"):
        assert [one[name] for one in back] == [one[name] for one in there]
    again: Any = ps.open(tmp_path / "m2", columns=["label", "vec"])
    assert same_samples(list(again), [{"label": row["label"], "vec": row["vec"]} for row in rows])


def test_a_folder_gives_samples_by_key(tmp_path: Path) -> None:
    (tmp_path / "f" / "d").mkdir(parents=True)
    for name, data in {
        "d/a.jpg": jpeg(1),
        "d/a.txt": b"a",
        "d/a-b.jpg": jpeg(2),
        "d/a-b.txt": b"b",
        "README": b"x",
    }.items():
        (tmp_path / "f" / name).write_bytes(data)
    report = convert(tmp_path / "f", tmp_path / "w", to="webdataset")
    assert report.lost == ("file 'README' (without an extension, hidden, or created by the operating system)",)
    assert stored(tmp_path / "w") == [
        {"__key__": "d/a-b", "jpg": jpeg(2), "txt": b"b"}, {"__key__": "d/a", "jpg": jpeg(1), "txt": b"a"},
    ]  # fmt: skip


def test_parquet_and_hf(tmp_path: Path, golden: Path) -> None:
    rows = [{"n": number, "t": f"r{number}", "l": [1] * (number % 3), "b": b"x" * number} for number in range(30)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
    report = convert(tmp_path / "a.parquet", tmp_path / "m", to="mds", group_rows=11)
    assert (report.samples, report.groups) == (30, 3)
    assert [{name: sample[name] for name in rows[0]} for sample in ps.open(tmp_path / "m")] == rows
    convert(tmp_path / "a.parquet", tmp_path / "w", to="webdataset")
    assert stored(tmp_path / "w")[4] == {
        "__key__": "000000004", "n.cls": b"4", "t.txt": b"r4", "l.json": b"[1]", "b.bin": b"xxxx"
    }  # fmt: skip
    report = convert(golden / "hf", tmp_path / "h", to="mds")
    assert report.lost == ("difference between null and missing in 'text'",)
    assert [one["text"] for one in ps.open(tmp_path / "h")] == [one["text"] for one in ps.open(golden / "hf")]
    assert len(convert(golden / "hf", tmp_path / "t", to="mds", split="test").digest or "") == 32
    assert len(ps.open(tmp_path / "t")) == 3


def test_images_of_hugging_face(tmp_path: Path) -> None:
    rows = [{"image": {"bytes": jpeg(number), "path": None}, "label": number} for number in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    convert(tmp_path / "a.parquet", tmp_path / "m", to="mds")
    assert [one["image"] for one in stored(tmp_path / "m")] == [jpeg(number) for number in range(5)]
    convert(tmp_path / "a.parquet", tmp_path / "w", to="webdataset")
    assert [one["image.jpg"] for one in stored(tmp_path / "w")] == [jpeg(number) for number in range(5)]


def test_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,text\n1,"a, ""b""\nc"\n\n2,é\n')
    convert(tmp_path / "a.csv", tmp_path / "m", to="mds", columns={"id": "int", "text": "str"}, group_rows=1)
    assert read(tmp_path / "m") == [{"id": 1, "text": 'a, "b"\nc'}, {"id": 2, "text": "é"}]
    convert(tmp_path / "a.csv", tmp_path / "texts", to="mds")
    assert read(tmp_path / "texts")[0]["id"] == "1"
    (tmp_path / "b.tsv").write_text("a\tb\n1\n")
    with pytest.raises(Corrupt, match="line 2"):
        convert(tmp_path / "b.tsv", tmp_path / "b", to="mds")


def test_tokens_and_back(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0, tokenizer="t") as writer:
        for length in (5, 0, 300, 41):
            writer.write({"tokens": np.array([*range(1, length + 1), 0], np.uint16)})
    convert(tmp_path / "a.pbin", tmp_path / "m", to="mds", group_rows=3)
    shards: Any = ps.open(tmp_path / "m")
    assert shards.details()["columns"] == {"tokens": "ndarray:uint16"}
    report = ps.convert(tmp_path / "m", tmp_path / "b.pbin")
    assert report.tokens == 350
    for name in ("a.pbin", "b.pbin"):
        source: Any = ps.open(tmp_path / name)
        assert (source.eos_id, source.manifest.tokenizer) == (0, "t")
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "b.pbin").read_bytes()
    assert ps.convert(tmp_path / "m", tmp_path / "c.zarr").digest == report.digest


# --- what can't be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "options", "error", "words"),
    [
        ([{"a": 1}, {"b": 1}], {"to": "csv"}, Unsupported, "csv can't hold the column 'a': found int values, some of"),
        ([{"a": b"x"}], {"to": "jsonl"}, Unsupported, "jsonl can't hold the column 'a'"),
        ([{"a": b"x"}], {"to": "json-shards"}, Unsupported, "json-shards can't hold the column 'a'"),
        ([{"a": 1}, {"a": b"x"}], {"to": "mds"}, Unsupported, "mixed values"),
        ([{"a": 1}], {"to": "mds", "columns": {"b": "int"}}, ConfigError, "no column 'b'"),
        ([{"a": 1}], {"to": "mds", "columns": {"a": "nope"}}, ConfigError, "unknown encoding"),
        ([{"a": "x"}], {"to": "mds", "columns": {"a": "int"}}, ConfigError, "sample 0, column 'a'"),
        ([{"a": "x,y"}], {"to": "csv"}, ConfigError, "sample 0"),
        ([], {"to": "mds"}, PenstockError, "no column"),
        ([1], {"to": "mds"}, ConfigError, "is not a dict"),
        ([{"a": 1}], {"to": "parquet"}, Unsupported, "read-only"),
        ([{"a": 1}], {"to": "pbin"}, ConfigError, "path"),
        ([{"a": 1}], {"to": "mds", "eos": ("add", 0)}, ConfigError, "EOS"),
        ([{"a": 1}], {"to": "mds", "workers": 0}, ConfigError, "worker"),
        ([{"a": 1}], {"to": "mds", "group_rows": 0}, ConfigError, "group"),
        ([{"__key__": "k", "a.txt": "t"}], {"to": "webdataset", "split_ratio": [1, 1, 1]}, ConfigError, "prepare"),
    ],
)
def test_refusals_leave_nothing(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        convert(iter(rows), tmp_path / "out", **options)
    assert os.listdir(tmp_path) == []


def test_a_later_sample_that_does_not_fit_is_named(tmp_path: Path) -> None:
    rows = [{"a": number} for number in range(1500)]
    with pytest.raises(ConfigError, match="sample 1200 lacks the column 'a'"):
        convert(iter([*rows[:1200], {"a": None}]), tmp_path / "out", to="mds")
    assert os.listdir(tmp_path) == []


def test_an_existing_output_is_refused_or_replaced(tmp_path: Path) -> None:
    convert(iter([{"a": 1}]), tmp_path / "out", to="mds")
    with pytest.raises(ConfigError, match="exists"):
        convert(iter([{"a": 2}]), tmp_path / "out", to="mds")
    convert(iter([{"a": 2}]), tmp_path / "out", to="mds", overwrite=True)
    assert read(tmp_path / "out") == [{"a": 2}]
    assert hidden(tmp_path) == []
    with pytest.raises(NotFound):
        convert(tmp_path / "none", tmp_path / "x", to="mds")


def test_damage_on_the_way_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = current("assemble_groups")

    def damaged(*args: Any, **options: Any) -> Any:
        manifest = put(*args, **options)
        path = tmp_path / "out" / "shard.00000.mds"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        return manifest

    replace(monkeypatch, "assemble_groups", damaged)
    with pytest.raises(Corrupt, match="differs from the source when read back"):
        convert(iter([{"a": "xyz"}]), tmp_path / "out", to="mds")


# --- in groups ---------------------------------------------------------------------------------------------------


def test_one_group_is_what_the_writer_makes(tmp_path: Path) -> None:
    rows = [{"id": number, "text": "x" * (number % 50)} for number in range(500)]
    options: dict[str, Any] = {"size_limit": 4000, "hashes": ["sha1"], "compression": "zstd:3"}
    convert(iter(rows), tmp_path / "a", to="mds", group_rows=500, **options)
    with ps.create(tmp_path / "b", format="mds", columns={"id": "int", "text": "str"}, **options) as writer:
        for row in rows:
            writer.write(row)
    made, expected = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    assert {name: data for name, data in made.items() if name != ".penstock"} == {
        name: data for name, data in expected.items() if name != ".penstock"
    }
    assert ps.verify(tmp_path / "a", depth="full") == []


@pytest.mark.parametrize("to", ["mds", "csv"])
def test_workers_do_not_change_the_bytes(tmp_path: Path, to: str) -> None:
    rows = [{"id": number, "text": "x" * (number % 50)} for number in range(300)]
    convert(iter(rows), tmp_path / "a.jsonl")
    options: dict[str, Any] = {"to": to, "group_rows": 37, "size_limit": 500, "hashes": ["xxh64"]}
    reports = [
        ps.convert(tmp_path / "a.jsonl", tmp_path / f"w{workers}", workers=workers, **options) for workers in (1, 3)
    ]
    assert files_of(tmp_path / "w1") == files_of(tmp_path / "w3")
    assert {(report.groups, report.digest) for report in reports} == {(9, reports[0].digest)}
    assert [dict(sorted(one.items())) for one in ps.open(tmp_path / "w3")] == rows
    convert(iter(rows), tmp_path / "once", **options)
    assert files_of(tmp_path / "once")["index.json"] == files_of(tmp_path / "w1")["index.json"]
    assert ps.verify(tmp_path / "w3", depth="full") == []
    assert hidden(tmp_path) == []


SCRIPT = f"""
import sys, penstock as ps
real = {code_of("write_group")}
def slow(job, task):
    done = real(job, task)
    print(done.task, flush=True)
    import time; time.sleep(float(sys.argv[3]))
    return done
{code_to_set("write_group", "slow")}
ps.convert(sys.argv[1], sys.argv[2], to="mds", group_rows=20, size_limit=300, executor="inline")
"""


@pytest.mark.parametrize("otherwise", [False, True])
def test_killed_and_run_again(tmp_path: Path, otherwise: bool) -> None:
    convert(({"id": number, "text": "x" * (number % 50)} for number in range(200)), tmp_path / "a.jsonl")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "a.jsonl"), str(tmp_path / "out"), "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "out").exists()
    options: dict[str, Any] = {"to": "mds", "group_rows": 20, "size_limit": 300}
    if otherwise:
        options["group_rows"] = 50
        with pytest.raises(ConfigError, match="unfinished work for this output differs: --group-rows"):
            convert(tmp_path / "a.jsonl", tmp_path / "out", **options)
        other = convert(tmp_path / "a.jsonl", tmp_path / "out", restart=True, **options)
        assert (other.groups, other.reused_groups) == (4, 0)
    else:
        report = convert(tmp_path / "a.jsonl", tmp_path / "out", **options)
        assert (report.groups, report.reused_groups) == (10, 1)
        convert(tmp_path / "a.jsonl", tmp_path / "plain", **options)
        assert files_of(tmp_path / "out") == files_of(tmp_path / "plain")
    assert hidden(tmp_path) == []


def test_samples_that_come_once_are_held_against_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(rows: list[Sample], error: BaseException) -> Any:
        yield from rows
        raise error

    rows = [{"a": number} for number in range(1100)]
    with pytest.raises(OSError, match="gone"):
        convert(failing(rows, OSError("gone")), tmp_path / "out", to="mds", group_rows=1000)
    assert hidden(tmp_path) == [work_name("out")]
    with pytest.raises(ConfigError, match="group 0 of the unfinished work"):
        convert(iter([{"a": 7}, *rows[1:]]), tmp_path / "out", to="mds", group_rows=1000)
    with pytest.raises(OSError, match="gone"):
        convert(failing(rows, OSError("gone")), tmp_path / "out", to="mds", group_rows=1000)
    report = convert(iter(rows), tmp_path / "out", to="mds", group_rows=1000)
    assert (report.groups, report.reused_groups) == (2, 1)
    assert len(ps.open(tmp_path / "out")) == 1100


def test_rows_are_read_a_few_megabytes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(({"t": "x" * 100_000} for _ in range(300)), tmp_path / "a", to="mds")
    real, asked = SourceRows.samples, list[int]()

    def watched(rows: SourceRows, start: int, stop: int) -> list[Sample]:
        asked.append(stop - start)
        return real(rows, start, stop)

    monkeypatch.setattr(SourceRows, "samples", watched)
    convert(tmp_path / "a", tmp_path / "b", to="mds")
    assert sum(asked[:10]) == 300  # the first samples, which tell what columns are
    assert max(asked[10:]) * 100_000 <= 1 << 23


def test_partitions(tmp_path: Path) -> None:
    columns = {"id": "int", "text": "str"}
    rows = [{"id": number, "text": str(number)} for number in range(50)]
    parts: list[Callable[[], int]] = [
        lambda index=index: write_partition(rows[index::12], tmp_path / "out", index, columns=columns, hashes=["sha1"])
        for index in range(12)
    ]
    assert sum(part() for part in parts) == 50
    parts[3]()  # run again by its scheduler
    assert merge_partitions(tmp_path / "out") == 12
    assert [one["id"] for one in ps.open(tmp_path / "out")] == list(
        itertools.chain.from_iterable(range(index, 50, 12) for index in range(12))
    )
    assert write_partition([], tmp_path / "none", 0, columns=columns) == 0
    with pytest.raises(ConfigError, match="partition 2, row 1"):
        write_partition([{"id": 1, "text": ""}, {"id": 1}], tmp_path / "out", 2, columns=columns)
    with pytest.raises(ConfigError, match="shards"):
        write_partition([], tmp_path / "out", 1, columns=columns, format="webdataset")
    with pytest.raises(NotFound):
        merge_partitions(tmp_path / "nothing")


def test_remote_output_is_written_at_once(tmp_path: Path) -> None:
    rows = iter([{"a": number} for number in range(20)])
    asked = understand(
        rows, Place(MemoryStore(), "out"), to="mds", format=None, eos=None, columns=None, group_rows=7, workers=1,
        executor="inline", overwrite=False, file_tokens=None, sharing=RunOptions(), options={},
    )  # fmt: skip
    plan = plan_samples(asked)
    written = write_samples(plan, plan.output, lambda done, text: None)
    assert written.groups is None
    assert verify_samples(plan, plan.output, written, lambda done, text: None).samples == 20


def leave_published(source: Path, target: Path, **options: Any) -> None:
    """A run that is killed when its output is visible, and before it is read back."""

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        replace(patch, "verify_samples", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(source, target, **options)


def test_a_published_output_is_checked_and_not_written_again(tmp_path: Path) -> None:
    convert(iter([{"a": number} for number in range(30)]), tmp_path / "a.jsonl")
    leave_published(tmp_path / "a.jsonl", tmp_path / "out", to="mds", group_rows=10)
    assert hidden(tmp_path) == [work_name("out")]
    before = {name: os.stat(tmp_path / "out" / name).st_ino for name in os.listdir(tmp_path / "out")}
    report = convert(tmp_path / "a.jsonl", tmp_path / "out", to="mds", group_rows=10)
    assert (report.samples, report.reused_groups, report.was_complete) == (30, 3, True)
    assert before == {name: os.stat(tmp_path / "out" / name).st_ino for name in os.listdir(tmp_path / "out")}
    assert hidden(tmp_path) == []
    leave_published(tmp_path / "a.jsonl", tmp_path / "bad", to="mds", group_rows=10)
    shard = tmp_path / "bad/shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(Corrupt, match="differs from the source when read back"):
        convert(tmp_path / "a.jsonl", tmp_path / "bad", to="mds", group_rows=10)


@pytest.mark.parametrize("left", ["all", "no plan", "nothing but the folder", "of another plan"])
def test_work_that_a_killed_run_had_finished_goes_with_the_next(tmp_path: Path, left: str) -> None:
    ps.convert([{"id": n} for n in range(8)], tmp_path / "in", to="mds", executor="inline")
    leave_published(tmp_path / "in", tmp_path / "out", to="csv", group_rows=2)
    work = work_beside(tmp_path / "out")
    before = files_of(tmp_path / "out")
    if left == "no plan":
        (work / "plan").unlink()
    if left == "nothing but the folder":
        shutil.rmtree(work)
        work.mkdir()
    if left == "of another plan":
        with pytest.raises(ConfigError, match="the output exists"):
            convert(tmp_path / "in", tmp_path / "out", to="csv", group_rows=3)
    else:
        assert convert(tmp_path / "in", tmp_path / "out", to="csv", group_rows=2).was_complete
    assert work.exists() == (left == "of another plan")
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("target", ["a.jsonl", "mds", "tars"])
def test_excluded_samples_are_copied_with_their_entries(tmp_path: Path, target: str) -> None:
    source, to = tmp_path / "in", {"mds": "mds", "tars": "webdataset"}.get(target)
    with ps.create(source, format="mds", columns={"id": "int"}) as writer:
        for n in range(9):
            writer.write({"id": n})
    ps.exclude(source, indices=[2, 8], reason="asked for")
    report = ps.convert(source, tmp_path / target, to=to, keep_excluded=True)
    assert (report.samples, report.excluded) == (9, 0)
    there = ps.open(tmp_path / target)
    assert (len(there), there.excluded_indices.tolist()) == (9, [2, 8])
    assert not waiting_files(tmp_path)
    assert ps.convert(source, tmp_path / f"less-{target}", to=to).excluded == 2
    for how in ({"overwrite": True}, {"part": (0, 2)}):
        with pytest.raises(ConfigError, match=r"can't be copied|single process"):
            ps.convert(source, tmp_path / target, to=to, keep_excluded=True, **how)


@pytest.mark.parametrize("to", ["jsonl", "mds", "webdataset"])
def test_a_generator_may_use_its_sample_again(tmp_path: Path, to: str) -> None:
    row: dict[str, Any] = {"ids": np.zeros(2, np.int64), "texts": [], "number": 0}

    def used_again(number: int) -> dict[str, Any]:
        row["ids"][:] = number
        row["texts"][:] = [str(number)]
        row["number"] = number
        return row

    ps.convert(map(used_again, range(5)), tmp_path / "out", to=to, executor="inline")
    samples: list[dict[str, Any]] = [
        {name.partition(".")[0]: value for name, value in sample.items()} for sample in ps.open(tmp_path / "out")
    ]
    assert [list(sample["ids"]) for sample in samples] == [[number] * 2 for number in range(5)]
    assert [sample["texts"] for sample in samples] == [[str(number)] for number in range(5)]
    assert [sample["number"] for sample in samples] == list(range(5))
