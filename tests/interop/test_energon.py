"""Penstock against the real Megatron-Energon, in both directions, on fresh input.

What our `prepare` makes it loads, what it prepared we open, and both make the same files of the same tars.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import random
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import peers
import pytest
from PIL import Image
from tests.internals import DatasetOptions, ShardMedia, build_index, media_filter, prepare_webdataset

import penstock as ps
from penstock import prepare_media

FORMATS = (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT)
CAPTIONS = {"image": "png", "caption": "json[caption]"}


def theirs(call: str, **arguments: Any) -> Any:
    """Run the script with Energon's interpreter."""
    return peers.run_script("energon", peers.SCRIPTS / "energon_dataset.py", {"call": call, **arguments})


def their_command(*arguments: object, status: int = 0) -> str:
    done = theirs("command", arguments=[str(one) for one in arguments])
    assert done["status"] == status, done["said"]
    return done["said"]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(f"{os.environ.get('PENSTOCK_INTEROP_SEED', '0')}:{request.node.name}")


def image(rng: random.Random, kind: str) -> bytes:
    mode = rng.choice(("RGB", "L") if kind in ("JPEG", "WEBP") else ("RGB", "L", "P"))
    made = Image.new(mode, (rng.randrange(1, 40), rng.randrange(1, 40)), rng.randrange(200))
    file = io.BytesIO()
    made.save(file, kind)
    return file.getvalue()


def make_shards(root: Path, rng: random.Random, shards: int, kinds: tuple[str, ...] = ("PNG",)) -> list[str]:
    """Tars of all three dialects, with long names, folders in keys and members that do not count; their names."""
    names: list[str] = []
    for number in range(shards):
        folder = rng.choice(("", "a/", "a/b.c/"))
        names.append(f"{folder}shard_{number:03d}.tar")
        path = root / names[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        dialect = rng.choice(FORMATS)
        with tarfile.open(path, "w", format=dialect) as tar:
            for sample in range(rng.randrange(1, 12)):
                key = f"{rng.choice(('', 'deep/er.x/', './'))}s{number}_{sample}"
                if dialect != tarfile.USTAR_FORMAT:
                    key += rng.choice(("", "_ünï", "_" + "l" * 120))
                kind = rng.choice(kinds)
                caption = {"caption": f"{key} {rng.random()}", "n": sample}
                parts = {
                    kind.lower().replace("jpeg", "jpg"): image(rng, kind),
                    "json": json.dumps(caption).encode(),
                    "seg.txt": rng.randbytes(rng.choice((0, 1, 511, 512, 700))).hex().encode(),
                }
                for part, content in parts.items():
                    add(tar, f"{key}.{part}", content)
                if rng.random() < 0.3:
                    add(tar, "__meta__/left.out", b"x")
                    add(tar, "no_dot", b"y")
    return sorted(names, key=lambda name: name.split("/"))


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def rows(root: Path) -> dict[str, Any]:
    """Rows of each table in `index.sqlite`, sorted, and how tables and indexes were made."""
    with closing(sqlite3.connect(root / ".nv-meta" / "index.sqlite")) as index:
        made = sorted(
            (name, " ".join((sql or "").split())) for name, sql in index.execute("SELECT name, sql FROM sqlite_master")
        )
        tables = [name for (name,) in index.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {
            name: sorted(index.execute(f"SELECT * FROM {name}"), key=repr)
            for name in tables
            if name != "sqlite_sequence"
        }
    return {"made": made, **found}


def assert_same_files(ours: Path, other: Path, *names: str) -> None:
    for name in names:
        assert (ours / name).read_bytes() == (other / name).read_bytes(), name
    indexes = {path.relative_to(other) for path in other.rglob("*.tar.idx")}
    assert indexes == {path.relative_to(ours) for path in ours.rglob("*.tar.idx")}
    for name in indexes:
        assert (ours / name).read_bytes() == (other / name).read_bytes(), name
    assert rows(ours) == rows(other)


@pytest.mark.parametrize("case", range(3))
def test_same_files(tmp_path: Path, rng: random.Random, case: int) -> None:
    ours, other = tmp_path / "ours", tmp_path / "theirs"
    shards = make_shards(ours, rng, rng.randrange(3, 14))
    shutil.copytree(ours, other)
    ratio = rng.choice(((8, 1, 1), (2, 1, 1), (1, 0, 0), (5, 3, 2)))
    mixed = rng.random() < 0.5
    fields = json.dumps(CAPTIONS)
    their_command(
        *(
            "prepare",
            "--no-progress",
            "--num-workers",
            2,
            "--non-interactive",
            "--split-ratio",
            ",".join(map(str, ratio)),
        ),
        *(*(["--shuffle-tars"] if mixed else []), "--sample-type", "CaptioningSample", "--field-map", fields, other),
    )
    dataset = DatasetOptions(sample_type="CaptioningSample", field_map=CAPTIONS)
    summary = prepare_webdataset(ours, split_ratio=ratio, shuffle_tars=mixed, dataset=dataset)
    assert_same_files(ours, other, ".nv-meta/.info.json", ".nv-meta/dataset.yaml")
    assert sum(count for count, _ in summary.splits.values()) == len(shards)
    if not any("rounding" in one for one in summary.warnings):
        assert_same_files(ours, other, ".nv-meta/split.yaml")


def test_same_splits_by_patterns(tmp_path: Path, rng: random.Random) -> None:
    ours, other = tmp_path / "ours", tmp_path / "theirs"
    make_shards(ours, rng, 14)
    shutil.copytree(ours, other)
    patterns = [("train", r".*shard_00[0-6]\.tar"), ("val", ".*shard_{007,009}.tar"), ("extra", ".*shard_01.*")]
    flags = [flag for name, pattern in patterns for flag in ("--split-parts", f"{name}:{pattern}")]
    their_command("prepare", "--no-progress", "--non-interactive", *flags, "--exclude", "shard_003", other)
    prepare_webdataset(ours, split_parts=patterns, exclude="shard_003")
    assert_same_files(ours, other, ".nv-meta/.info.json", ".nv-meta/split.yaml")


def test_they_load_what_we_prepare(tmp_path: Path, rng: random.Random) -> None:
    make_shards(tmp_path, rng, 6)
    dataset = DatasetOptions(sample_type="CaptioningSample", field_map=CAPTIONS)
    prepare_webdataset(tmp_path, split_ratio=(4, 1, 1), dataset=dataset)
    assert "Error" not in their_command("lint", tmp_path)
    for split in ("train", "val"):
        read = theirs("samples", path=tmp_path, split=split, raw=False)
        source = ps.open(tmp_path, split=split)
        assert [one["__key__"] for one in read] == [one["__key__"] for one in source]
        assert [one["caption"] for one in read] == [one["caption"] for one in source]
        assert [one["image"]["shape"][1:] for one in read] == [
            [one["image"].height, one["image"].width] for one in source
        ]
    names = [f"{one['__key__']}.png" for one in ps.open(tmp_path, split="train")]
    raw: Any = ps.open(tmp_path, split="val", raw=True)
    digests = theirs("files", path=tmp_path, names=names)
    assert digests == {name: hashlib.sha256(raw.get(name)).hexdigest() for name in names}


@pytest.mark.parametrize("prepared_by", ["us", "them"])
def test_crude_samples(tmp_path: Path, rng: random.Random, prepared_by: str) -> None:
    make_shards(tmp_path, rng, 5, ("PNG", "JPEG", "GIF"))
    if prepared_by == "us":
        prepare_webdataset(tmp_path, split_ratio=(1, 1, 0), dataset=DatasetOptions(sample_type="CrudeWebdataset"))
    else:
        flags = ("--no-progress", "--non-interactive", "--split-ratio", "1,1,0", "--sample-type", "CrudeWebdataset")
        their_command("prepare", *flags, tmp_path)
    for split in ("train", "val"):
        read = theirs("samples", path=tmp_path, split=split, raw=True)
        source = ps.open(tmp_path, split=split, raw=True)
        assert [parts(one) for one in read] == [parts(one) for one in source]
    # Some members have no key: both tools leave them out, and `verify` counts them.
    assert {one.code for one in ps.verify(tmp_path, depth="full")} <= {"webdataset.ignored"}


def parts(sample: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and digests in their order, the key first."""
    names = [name for name in sample if not name.startswith("__")]
    values = [sample[name] if isinstance(sample[name], bytes) else sample[name]["sha256"] for name in names]
    digests = [hashlib.sha256(one).hexdigest() if isinstance(one, bytes) else one for one in values]
    return [("__key__", sample["__key__"]), *zip(names, digests, strict=True)]


def test_they_load_what_we_write(tmp_path: Path, rng: random.Random) -> None:
    samples = [{"__key__": f"k/{n:04d}", "bin": rng.randbytes(rng.randrange(900)), "txt": f"t {n}"} for n in range(50)]
    with ps.create(tmp_path / "made", format="webdataset", maxcount=7, pattern="p/%03d.tar") as writer:
        for sample in samples:
            writer.write(sample)
    read = theirs("samples", path=tmp_path / "made", split="train", raw=True)
    assert [parts(one) for one in read] == [parts(one | {"txt": str(one["txt"]).encode()}) for one in samples]
    shutil.copytree(tmp_path / "made", tmp_path / "again")
    their_command("prepare", "--tar-index-only", "--no-progress", tmp_path / "again")
    assert_same_files(tmp_path / "made", tmp_path / "again", ".nv-meta/.info.json")


@pytest.mark.parametrize("case", range(2))
def test_jsonl(tmp_path: Path, rng: random.Random, case: int) -> None:
    lines = []
    for n in range(rng.randrange(1, 200)):
        value = {"n": n, "text": "ü\u2028" * rng.randrange(9)}
        line = json.dumps(value, ensure_ascii=rng.random() < 0.5)
        lines.append(rng.choice(("", " ", "\t")) + line + rng.choice(("\n", "\r\n", " \n", "\n\n")))
    text = rng.choice(("", "\n\n")) + "".join(lines)
    ours, other = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    for path in (ours, other):
        path.write_bytes((text.rstrip() if case else text).encode())
    their_command("prepare", other)
    build_index(ours, flavor="energon")
    assert Path(f"{ours}.idx").read_bytes() == Path(f"{other}.idx").read_bytes()
    read = theirs("samples", path=ours, split="train", raw=True)
    source = ps.open(other, flavor="energon", raw=True)
    assert [one["__key__"] for one in read] == [one["__key__"] for one in source]
    assert [json.loads(one["json"]) for one in source] == [one["json"] for one in read]


@pytest.mark.parametrize("by", ["extension", "header"])
def test_media_metadata_of_tars(tmp_path: Path, rng: random.Random, by: str) -> None:
    ours, other = tmp_path / "ours", tmp_path / "theirs"
    make_shards(ours, rng, 3, ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"))
    shutil.copytree(ours, other)
    flags = ("--no-progress", "--non-interactive", "--split-ratio", "1,0,0", f"--media-metadata-by-{by}")
    their_command("prepare", *flags, other)
    prepare_webdataset(ours, split_ratio=(1, 0, 0), media=ShardMedia(media_filter(by)))
    mine, found = rows(ours), rows(other)
    assert mine["media_metadata"] == found["media_metadata"]
    assert [row[1:3] for row in mine["media_filters"]] == [row[1:3] for row in found["media_filters"]]
    names = [row[0] for row in found["media_metadata"]]
    source: Any = ps.open(other, split="train", raw=True)
    asked = theirs("media", path=ours, names=names, folder=False)
    assert asked == {name: dataclasses.asdict(source.get_media_metadata(name)) for name in names}


def test_media_metadata_of_a_folder(tmp_path: Path, rng: random.Random) -> None:
    ours, other = tmp_path / "ours", tmp_path / "theirs"
    for number in range(12):
        kind = rng.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP"))
        path = ours / rng.choice(("", "sub/", "ü/")) / f"{number}.{kind.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(rng, kind))
    (ours / "notes.txt").write_text("no image")
    shutil.copytree(ours, other)
    their_command("prepare-media", "--no-progress", "--media-metadata-by-extension", other)
    prepare_media(ours)
    assert rows(ours)["media_metadata"] == rows(other)["media_metadata"]
    names = [row[0] for row in rows(ours)["media_metadata"]]
    assert len(theirs("media", path=ours, names=names, folder=True)) == 12
