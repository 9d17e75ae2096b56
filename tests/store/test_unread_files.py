"""Files of a directory that hold samples but aren't read because of their suffix, and files that are read twice."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.internals import find_paths, main, place_of, put

import penstock as ps
from penstock.errors import PenstockError

LINE = b'{"text": "a"}\n'


@pytest.fixture(params=["local", "s3"])
def fill(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write files to a new directory, of this machine or of an object store; return its path."""
    root = str(tmp_path / "in")
    if request.param == "s3":
        request.getfixturevalue("s3_server")
        monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
        root = f"s3://bucket/unread/{tmp_path.name}"
    Path(tmp_path / "in").mkdir()

    def write(files: dict[str, bytes]) -> str:
        for name, data in files.items():
            place = place_of(f"{root}/{name}")
            put(place.store, place.path, data)
        return root

    return write


def packed(name: str, data: bytes) -> bytes:
    return gzip.compress(data) if ".gz" in name.lower() else data


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


def test_files_that_are_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, data in {
        "a.jsonl": LINE, "b.jsonl.bz2": bz2.compress(LINE), "c.JSONL.xz": lzma.compress(LINE), "d.JSON": LINE,
        "dataset_info.json": b"{}",
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(data)
    assert len(ps.open(str(tmp_path))) == 1
    for name in ("b.jsonl.bz2", "c.JSONL.xz", "d.JSON"):
        assert sum(f"{name}: this file is ignored" in message for message in caplog.messages) == 1
    assert not any("dataset_info.json" in message for message in caplog.messages)


def test_a_directory_of_json_files_says_how_to_make_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "a"}]')
    with pytest.raises(PenstockError, match=r"a directory of JSON files.*jq -c"):
        ps.open(str(tmp_path))


UNREAD = {
    "jsonl": [
        "b.JSONL", "b.jsonl.GZ", "b.JSONL.gz", "below/b.Ndjson", "b.jsonl.1", "b.jsonl.part", "b.jsonl.gz.part",
        "b.ndjson.tmp", "b.jsonl~",
    ],
    "csv": ["b.csv.GZ", "b.Csv", "b.csv.part", "b.tsv.2"],
    "parquet": ["b.PARQUET", "b.parquet.tmp"],
}  # fmt: skip


@pytest.mark.parametrize("format", UNREAD)
def test_files_with_another_suffix_are_named(
    format: str, fill: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the file with the known suffix is read, and every other one is named once, here and far away."""
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x")
    data = {"jsonl": LINE, "csv": b"text\na\n", "parquet": (tmp_path / "x").read_bytes()}[format]
    names = UNREAD[format]
    root = fill(
        {f"a.{format}": data, "notes.md": b"x", "a.jsonl.md5": b"x"} | {one: packed(one, data) for one in names}
    )
    run("convert", root, str(tmp_path / "out.jsonl"), *(["--format", format] if format == "parquet" else []))
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()] == [{"text": "a"}]
    warned = [message.partition(": this file is ignored")[0] for message in caplog.messages if "is ignored" in message]
    assert sorted(warned) == sorted(f"{root}/{one}" for one in names)


@pytest.mark.parametrize(
    ("one", "two", "copies"),
    [
        ("a.jsonl", "a.jsonl.gz", True),
        ("a.jsonl", "a.ndjson", True),
        ("below/a.ndjson", "below/a.jsonl.gz", True),
        ("a.csv", "a.csv.gz", True),
        ("a.parquet", "a.pq", True),
        ("a.jsonl", "below/a.jsonl.gz", False),
        ("a.jsonl", "a.b.jsonl", False),
    ],
)
def test_files_that_may_be_read_twice_are_named(
    one: str, two: str, copies: bool, fill: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x")
    data = (
        b"text\na\n" if ".csv" in one else LINE if "p" not in one.rpartition(".")[2] else (tmp_path / "x").read_bytes()
    )
    root = fill({one: packed(one, data), two: packed(two, data)})
    run("convert", root, str(tmp_path / "out.jsonl"))
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 2  # as before
    warned = [message for message in caplog.messages if "may contain the same samples" in message]
    assert len(warned) == copies
    assert all(f"{root}/{name}" in message for message in warned for name in (one, two))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.jsonl.GZ", gzip.compress(LINE), r"a name that doesn't end in \.jsonl\.gz.*Rename it"),
        ("d.JSONL.gz", gzip.compress(LINE), r"a name that doesn't end in \.jsonl\.gz.*Rename it"),
        ("j.json", LINE * 2, r"JSON objects, one per line.*Rename it to \.jsonl"),
        ("k.json", b'{"path": "a"}\n{"path": "b"}\n', r"JSON objects, one per line.*Rename it to \.jsonl"),
        ("l.json", b'{"a":\n{"b": 1}}\n', "one JSON document"),
    ],
    ids=["c.jsonl.GZ", "d.JSONL.gz", "j.json", "k.json", "l.json"],
)
def test_messages_about_names_say_what_is_true(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PenstockError, match=message):
        ps.open(str(tmp_path / name))


@pytest.mark.parametrize("kind", ["file", "folder", "hidden", "outside"])
def test_links_to_files_that_are_read_too_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """`latest -> 2026`, a link beside its target, doubles the data; a link to a cache or to another folder doesn't."""
    root = tmp_path / "in"
    for folder in ("in/2026", "in/.cache", "other"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.jsonl").write_bytes(LINE)
    link, target = {
        "file": (root / "latest.jsonl", "2026/x.jsonl"),
        "folder": (root / "latest", "2026"),
        "hidden": (root / "latest.jsonl", ".cache/x.jsonl"),
        "outside": (root / "latest", "../other"),
    }[kind]
    link.symlink_to(target)
    assert len(ps.open(root, follow_links=True)) == 2
    named = [message for message in caplog.messages if "this is a link to" in message]
    assert len(named) == (kind in ("file", "folder"))
    assert all(str(link) in message and "2026" in message for message in named)


def test_a_file_that_is_named_by_a_link_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE)
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    (tmp_path / "c.jsonl").write_bytes(LINE)
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    assert len(ps.open(paths)) == 3
    assert [f"{paths[1]}: this is the same file or folder as {paths[0]}" in message for message in caplog.messages] == [
        True
    ]


def test_tables_next_to_lines_are_named(
    fill: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"text": ["b"]}), tmp_path / "t.parquet")
    table = (tmp_path / "t.parquet").read_bytes()
    root = fill({"a.jsonl": LINE, "rows/b.parquet": table, "rows/c.parquet": table})
    assert [one.rpartition("/")[2] for one in find_paths([root])] == ["a.jsonl"]
    assert "b.parquet and 1 more: not read as part of the directory, which contains JSONL files" in caplog.text
    caplog.clear()
    assert len(find_paths([f"{root}/rows"])) == 2
    assert not caplog.text
