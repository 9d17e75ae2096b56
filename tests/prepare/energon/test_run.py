"""Preparing folders of tar shards: the files of Energon, and what is never touched."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.internals import OF_METADATA as WORK_FOLDER
from tests.internals import (
    DatasetOptions,
    MediaFilter,
    MediaRow,
    ShardTable,
    current,
    open_shared,
    peek_webdataset,
    place_of,
    plan_webdataset,
    prepare_jsonl,
    prepare_webdataset,
    replace,
)
from tests.internals import metadata_work_folder as folder_of

import penstock as ps
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError, PrepareError, Unsupported
from penstock.types import ImageMetadata

GOLDEN = Path(__file__).parents[2] / "golden" / "energon"
CAPTIONS = DatasetOptions(sample_type="CaptioningSample", field_map={"image": "jpg", "caption": "txt"})


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three shards of four samples."""
    for shard in range(3):
        members = [(f"k{shard}_{place}.txt", f"text {place}".encode()) for place in range(4)]
        write_tar(tmp_path / "set" / f"s_{shard}.tar", members)
    return tmp_path / "set"


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """The shards that Energon 7.4.1 prepared, without what it made."""
    shutil.copytree(GOLDEN / "captioning" / "shards", tmp_path / "captions" / "shards")
    for index in tmp_path.rglob("*.tar.idx"):
        index.unlink()
    return tmp_path / "captions"


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def meta(root: Path, name: str) -> str:
    return (root / ".nv-meta" / name).read_text()


def rows_of(path: Path) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("samples", "sample_parts")}


# --- what is made ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"executor": "inline"}, {"executor": "processes", "workers": 2}])
def test_as_energon_makes_it(captions: Path, how: Any) -> None:
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in captions.rglob("*.tar")}
    summary = prepare_webdataset(captions, split_ratio=(2, 1, 1), dataset=CAPTIONS, **how)
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in captions.rglob("*.tar")} == before
    for name in (".info.json", "split.yaml", "dataset.yaml"):
        assert meta(captions, name) == (GOLDEN / "captioning" / "nv-meta" / name).read_text()
    for index in (GOLDEN / "captioning").rglob("*.tar.idx"):
        assert (captions / "shards" / index.name).read_bytes() == index.read_bytes()
    golden = json.loads((GOLDEN / "index.json").read_text())
    rows = rows_of(captions / ".nv-meta" / "index.sqlite")
    for table, expected in golden["captioning"].items():
        assert sorted(map(list, rows[table])) == sorted(expected)
        assert rows[table] == sorted(rows[table], key=lambda row: (row[0], row[2] if table == "samples" else row[1]))
    with closing(sqlite3.connect(captions / ".nv-meta" / "index.sqlite")) as connection:
        schema = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        assert sorted(map(str, schema)) == sorted(str(tuple(row)) for row in golden["schema"])
    data = (captions / ".nv-meta" / "index.sqlite").read_bytes()
    assert list(data[18:20]) == golden["pragma"]["header_read_write_version"]
    assert (summary.num_samples, summary.num_parts) == (40, 120)
    assert summary.splits == {"train": (2, 20), "val": (1, 10), "test": (1, 10)}
    assert summary.warnings == ()
    assert sorted(path.name for path in captions.iterdir()) == [".nv-meta", "shards"]


def test_equal_shards_give_equal_files(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "other" / "deep")
    for one in (root, tmp_path / "other" / "deep"):
        prepare_webdataset(one, split_ratio=(1, 0, 0))
    assert files_in(root) == files_in(tmp_path / "other" / "deep")
    uuid = meta(root, "index.uuid")
    assert len(uuid) == 36
    write_tar(root / "s_3.tar", [("new.txt", b"")])
    prepare_webdataset(root, split_ratio=(1, 0, 0), overwrite=True)
    assert meta(root, "index.uuid") != uuid


@pytest.mark.parametrize("mode", [0o444, 0o640, 0o664])
def test_who_may_read_a_shard_may_read_its_index(root: Path, mode: int) -> None:
    shard = min(root.rglob("*.tar"))
    shard.chmod(mode)
    prepare_webdataset(root, split_ratio=[1, 0, 0])
    assert stat.S_IMODE(Path(f"{shard}.idx").stat().st_mode) == mode | 0o600


def test_names_and_order_of_shards(tmp_path: Path) -> None:
    for number, name in enumerate(["a/x.tar", "a-b/x.tar", "a.tar", "br{1,2}.tar", "odd#name %41.tar"]):
        write_tar(tmp_path / "set" / name, [(f"k{number}.txt", b"x")])
    write_tar(tmp_path / "set" / ".hidden" / "no.tar", [("h.txt", b"x")])
    write_tar(tmp_path / "set" / "U.TAR", [("u.txt", b"x")])
    (tmp_path / "set" / "folder.tar").mkdir()
    elsewhere = write_tar(tmp_path / "elsewhere" / "linked.tar", [("l.txt", b"x")])
    (tmp_path / "set" / "link").symlink_to(elsewhere.parent)
    (tmp_path / "set" / "a" / "loop").symlink_to(tmp_path / "set")
    summary = prepare_webdataset(tmp_path / "set", split_ratio=(1, 0, 0), follow_links=True)
    names = ["a/x.tar", "a-b/x.tar", "a.tar", "br{1,2}.tar", "link/linked.tar", "odd#name %41.tar"]
    assert list(summary.shard_counts) == names
    source: Any = ps.open(tmp_path / "set", raw=True, follow_links=True)
    assert [sample["__key__"] for sample in source] == ["k0", "k1", "k2", "k3", "l", "k4"]
    assert source.get("k3.txt") == b"x"


def test_plan_and_peek_scan_nothing_more(captions: Path) -> None:
    plan = plan_webdataset(captions, exclude="_00[01]")
    assert plan.shards == ("shards/shard_002.tar", "shards/shard_003.tar")
    assert plan.sizes == (40_960, 40_960)
    assert not plan.is_prepared
    first, second = peek_webdataset(captions, plan.shards)
    assert (first.key, second.key) == ("s2_000", "s2_001")
    assert {part: size for part, (size, _) in first.parts.items()} == {"jpg": 681, "txt": 26, "json": 94}
    assert json.loads(first.parts["json"][1])
    with pytest.raises(NotFound):
        plan_webdataset(captions, exclude=".")
    with pytest.raises(NotFound):
        plan_webdataset(captions / "nothing")
    with pytest.raises(ConfigError):
        plan_webdataset(captions, exclude="(")


# --- splits and user files -------------------------------------------------------------------------------------------


def test_every_shard_is_in_one_split(root: Path) -> None:
    summary = prepare_webdataset(root, split_ratio=(7, 2, 1))
    assert sum(shards for shards, _ in summary.splits.values()) == 3
    assert any("rounding" in one for one in summary.warnings)


def test_splits_by_patterns(root: Path) -> None:
    summary = prepare_webdataset(root, split_parts=[("train", "s_{0,2}"), ("dev", r"s_1\.tar")])
    assert summary.splits == {"train": (2, 8), "dev": (1, 4)}
    assert len(ps.open(root, split="dev", raw=True)) == 4
    with pytest.raises(ConfigError, match="matches no shard"):
        prepare_webdataset(root, split_parts={"train": "train-*"}, overwrite=True)


@pytest.mark.parametrize("ratio", [(0, 0, 0), (1, -1, 0), (1, 1, 1, 1), ("a", 1, 1)])
def test_ratios_that_can_not_be(root: Path, ratio: Any) -> None:
    before = files_in(root)
    with pytest.raises(ConfigError):
        prepare_webdataset(root, split_ratio=ratio)
    assert files_in(root) == before


def test_a_users_files_stay(root: Path) -> None:
    (root / ".nv-meta").mkdir()
    mine = "split_parts:\n  mine:\n  - s_1.tar\nexclude:\n- s_1.tar/k1_2\n"
    (root / ".nv-meta" / "split.yaml").write_text(mine)
    (root / ".nv-meta" / "dataset.yaml").write_text("# mine\n")
    with pytest.raises(ConfigError, match="already exists with different content") as caught:
        prepare_webdataset(root, split_ratio=(1, 0, 0))
    assert str(caught.value.path).endswith("split.yaml")
    with pytest.raises(ConfigError, match="already exists with different content"):
        prepare_webdataset(root, dataset=CAPTIONS)
    prepare_webdataset(root)
    assert meta(root, "split.yaml") == mine
    assert meta(root, "dataset.yaml") == "# mine\n"
    source: Any = ps.open(root, raw=True)
    assert [sample["__key__"] for sample in source] == ["k1_0", "k1_1", "k1_3"]
    assert source.split_size == 4
    assert [source.kept_before(place) for place in range(5)] == [0, 1, 2, 2, 3]
    prepare_webdataset(root, split_ratio=(1, 0, 0), overwrite=True)
    assert meta(root, "dataset.yaml") == "# mine\n"
    assert len(ps.open(root, raw=True)) == 12


def test_without_splits_it_asks(root: Path) -> None:
    with pytest.raises(ConfigError, match="split"):
        prepare_webdataset(root)
    assert not (root / ".nv-meta").exists()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["", "index.sqlite", "index.keys", "index.uuid", ".info.yaml"])
@pytest.mark.parametrize("put", [Path.mkdir, _pipe, lambda path: path.symlink_to("nowhere")])
def test_what_stands_in_the_way_is_said_before_anything_is_made(root: Path, name: str, put: Any) -> None:
    way = root / ".nv-meta" / name
    if name or put == Path.mkdir:
        way.parent.mkdir(exist_ok=True) if name else way.mkdir(exist_ok=True)
        way = way if name else way / "split.yaml"
    put(way)
    before = sorted(root.rglob("*"))
    with pytest.raises(PenstockError):
        prepare_webdataset(root, split_ratio=[1, 0, 0])
    assert sorted(root.rglob("*")) == before


def test_prepared_is_refused(root: Path) -> None:
    prepare_webdataset(root, split_ratio=(1, 0, 0))
    before = files_in(root)
    with pytest.raises(ConfigError, match="already"):
        prepare_webdataset(root, split_ratio=(1, 1, 1))
    assert files_in(root) == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (DatasetOptions(sample_type="CrudeWebdataset"), "__module__: megatron.energon\n__class__: CrudeWebdataset\n"),
        (
            DatasetOptions(sample_type="VQAOCRSample", field_map={"text": "json[a]"}, subflavors={"a": 1}),
            "sample_type:\n  __module__: megatron.energon.flavors.vqa_and_ocr\n  __class__: VQAOCRSample\n"
            "field_map:\n  text: json[a]\nsubflavors:\n  a: 1\n",
        ),
        (DatasetOptions(value={"__class__": "X"}), "__class__: X\n"),
    ],
)
def test_dataset_yaml(root: Path, options: DatasetOptions, expected: str) -> None:
    prepare_webdataset(root, split_ratio=(1, 0, 0), dataset=options)
    assert meta(root, "dataset.yaml") == expected


def test_dataset_yaml_that_can_not_be(root: Path) -> None:
    for options in (
        DatasetOptions(sample_type="TextSample"),
        DatasetOptions(field_map={"text": "txt"}),
        DatasetOptions(sample_type="CrudeWebdataset", field_map={"text": "txt"}),
        DatasetOptions(name="../x.yaml", sample_type="CrudeWebdataset"),
    ):
        with pytest.raises(ConfigError):
            prepare_webdataset(root, split_ratio=(1, 0, 0), dataset=options)
    assert not (root / ".nv-meta").exists()


# --- again -----------------------------------------------------------------------------------------------------------


def test_a_large_index_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, "large_energon_index_bytes", 1)
    assert any("--no-sqlite" in one for one in prepare_webdataset(root, split_ratio=(1, 1, 1)).warnings)
    again = prepare_webdataset(root, split_ratio=(1, 1, 1), sqlite=False, overwrite=True)
    assert not any("--no-sqlite" in one for one in again.warnings)
    assert not (root / ".nv-meta" / "index.sqlite").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_groups_of_shards_give_the_same_bytes(root: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    prepare_webdataset(root, split_ratio=(1, 1, 1))
    before, rows = files_in(root), rows_of(root / ".nv-meta" / "index.sqlite")
    assert len(rows["samples"]) == 12
    replace(monkeypatch, "energon_group_samples", 8)  # 4 samples a shard: two groups
    replace(monkeypatch, "energon_group_shards", 1)
    prepare_webdataset(root, split_ratio=(1, 1, 1), overwrite=True, workers=workers)
    assert files_in(root) == before
    assert rows_of(root / ".nv-meta" / "index.sqlite") == rows


def test_tar_index_only(root: Path) -> None:
    prepare_webdataset(root, split_ratio=(1, 1, 1))
    before = files_in(root)
    (root / "s_1.tar.idx").unlink()
    (root / ".nv-meta" / "index.sqlite").write_bytes(b"no database")
    (root / ".nv-meta" / "index.uuid").unlink()
    summary = prepare_webdataset(root, tar_index_only=True)
    assert summary.wrote == ("s_1.tar.idx", "index.sqlite", "index.keys", "index.uuid")
    assert files_in(root) == before
    with pytest.raises(ConfigError):
        prepare_webdataset(root, tar_index_only=True, exclude="s_0")


def test_tar_index_only_where_samples_came(root: Path) -> None:
    prepare_webdataset(root, split_ratio=(1, 0, 0))
    write_tar(root / "s_1.tar", [("n0.txt", b"0"), ("n1.txt", b"1")])
    summary = prepare_webdataset(root, tar_index_only=True)
    assert any("a different number" in one for one in summary.warnings)
    assert len(ps.open(root, raw=True)) == 10


def test_old_metadata_become_new(tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(GOLDEN / "versions" / "shards", root / "shards")
    shutil.copytree(GOLDEN / "versions" / "2_3_0" / "nv-meta", root / ".nv-meta")
    info = meta(root, ".info.yaml")
    prepare_webdataset(root, tar_index_only=True)
    assert json.loads(meta(root, ".info.json"))["shard_counts"]["shards/shard_000.tar"] == 3
    assert "energon_version" not in meta(root, ".info.json")
    assert meta(root, ".info.yaml") == info
    source: Any = ps.open(root, raw=True)
    assert source.get("s0_000.txt")


def test_without_sqlite(root: Path) -> None:
    prepare_webdataset(root, split_ratio=(1, 0, 0))
    prepare_webdataset(root, split_ratio=(1, 0, 0), sqlite=False, overwrite=True)
    assert not (root / ".nv-meta" / "index.sqlite").exists()
    assert len(ps.open(root, raw=True)) == 12


class _EveryText:
    """Stands for a reader of media."""

    filter = MediaFilter("GLOB", "*.txt")
    depth = "headers"

    def __call__(self, store: Any, path: str, table: ShardTable) -> list[MediaRow]:
        return [MediaRow(f"{key}.txt", ImageMetadata(7, len(key), "PNG", "RGB")) for key in table.keys]


def test_media_rows(root: Path) -> None:
    os.utime(root / "s_2.tar", (1_700_000_000, 1_700_000_000))
    for number in (0, 1):
        os.utime(root / f"s_{number}.tar", (1, 1))
    prepare_webdataset(root, split_ratio=(1, 0, 0), media=_EveryText(), executor="inline")
    source: Any = ps.open(root, raw=True)
    assert source.get_media_metadata("k2_3.txt") == ImageMetadata(7, 4, "PNG", "RGB")
    with pytest.raises(NotFound):
        source.get_media_metadata("k2_3.jpg")
    with closing(sqlite3.connect(root / ".nv-meta" / "index.sqlite")) as connection:
        rows = connection.execute("SELECT * FROM media_filters").fetchall()
    assert rows == [(1, "GLOB", "*.txt", "2023-11-14 22:13:20")]
    prepare_webdataset(root, tar_index_only=True)
    again: Any = ps.open(root, raw=True)
    assert again.get_media_metadata("k0_0.txt").width == 7
    write_tar(root / "s_1.tar", [("k0_0x.txt", b"another"), ("k1_9.txt", b"shard")])
    summary = prepare_webdataset(root, tar_index_only=True)
    assert any("because the shards changed" in warning for warning in summary.warnings)
    changed: Any = ps.open(root, raw=True)
    with pytest.raises(NotFound):
        changed.get_media_metadata("k0_0.txt")


def test_a_shard_that_is_done_is_not_scanned_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    scanned: list[str] = []
    real = current("scan_shard_of_prepare")

    def counting(store: Any, path: str) -> ShardTable:
        scanned.append(os.path.basename(path))
        if len(scanned) == 3:
            raise KeyboardInterrupt
        return real(store, path)

    replace(monkeypatch, "scan_shard_of_prepare", counting)
    with pytest.raises(KeyboardInterrupt):
        prepare_webdataset(root, split_ratio=(1, 0, 0), executor="inline")
    assert (root / WORK_FOLDER).is_dir()
    assert not (root / ".nv-meta").exists()
    write_tar(root / "s_1.tar", [("changed.txt", b"0")])
    summary = prepare_webdataset(root, split_ratio=(1, 0, 0), executor="inline")
    assert scanned == ["s_0.tar", "s_1.tar", "s_2.tar", "s_1.tar", "s_2.tar"]
    assert summary.num_reused == 1
    assert not (root / WORK_FOLDER).exists()


def opened(root: Path) -> Any:
    """The work on a dataset, held by another run."""
    return open_shared(place_of(root), folder_of(place_of(root)), restart=False, shared=False)


def test_two_runs_at_once(root: Path) -> None:
    with opened(root), pytest.raises(PrepareError, match="another run"):
        prepare_webdataset(root, split_ratio=(1, 0, 0))
    prepare_webdataset(root, split_ratio=(1, 0, 0))


# --- shards that are wrong -------------------------------------------------------------------------------------------


def refused(root: Path, kind: type[Exception], said: str) -> Any:
    before = files_in(root)
    with pytest.raises(kind, match=said) as caught:
        prepare_webdataset(root, split_ratio=(1, 0, 0))
    assert files_in(root) == before
    assert not (root / ".nv-meta").exists()
    return caught.value


def test_a_key_in_two_shards(root: Path) -> None:
    write_tar(root / "s_9.tar", [("other.txt", b""), ("k1_2.txt", b"")])
    error = refused(root, Corrupt, "'k1_2' is used twice")
    assert "s_1.tar at byte 2048" in error.found
    assert "s_9.tar at byte 512" in error.found


def test_parts_of_a_sample_apart(root: Path) -> None:
    path = write_tar(root / "s_9.tar", [("a.txt", b""), ("b.txt", b""), ("a.json", b"")])
    error = refused(root, Corrupt, "'a' is repeated")
    assert (error.path, error.offset_bytes) == (str(path), 1024)
    assert "first at byte 0, again at byte 1024" in error.found


@pytest.mark.parametrize("members", [[], [("README", b"nothing"), ("__notes__/a.txt", b"")]])
def test_an_empty_shard(root: Path, members: Any) -> None:
    write_tar(root / "s_9.tar", members)
    refused(root, Corrupt, "without samples")


def test_a_compressed_shard(root: Path) -> None:
    (root / "s_9.tgz").write_bytes(b"\x1f\x8b")
    refused(root, Unsupported, "compressed")
    prepare_webdataset(root, split_ratio=(1, 0, 0), exclude=r"\.tgz$")


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz", ".TGZ", ".tbz2", ".Tar.Gz"])
def test_compressed_shards_next_to_plain_ones(root: Path, suffix: str) -> None:
    (root / f"s_9{suffix}").write_bytes(b"x")
    refused(root, Unsupported, "compressed")
    prepare_webdataset(root, split_ratio=(1, 0, 0), exclude="s_9")


@pytest.mark.parametrize(
    "suffix", [".TAR", ".Tar", ".tar.part", ".tar.partial", ".tar.incomplete", ".tar.gz.part", ".TAR.tmp"]
)
def test_ignored_tars_are_named(root: Path, suffix: str) -> None:
    (root / f"s_9{suffix}").write_bytes(b"x")
    summary = prepare_webdataset(root, split_ratio=(1, 0, 0))
    assert [line for line in summary.warnings if f"s_9{suffix}" in line]
    assert f"s_9{suffix}" not in summary.shard_counts


def test_other_files_next_to_shards(root: Path) -> None:
    for name in ("s_9.tar.md5", "s_9.tar.json", "notes.gz", "s_9.tar.idx", "start", "notes.part"):
        (root / name).write_bytes(b"x")
    summary = prepare_webdataset(root, split_ratio=(1, 0, 0))
    assert not any("s_9" in line or "notes" in line for line in summary.warnings)


def test_names_that_leave_the_folder_are_keys(root: Path) -> None:
    write_tar(root / "s_9.tar", [("../up.txt", b"up"), ("/abs/p.txt", b"abs")])
    summary = prepare_webdataset(root, split_ratio=(1, 0, 0))
    assert any("../up" in one for one in summary.warnings)
    source: Any = ps.open(root, raw=True)
    assert source.get("../up.txt") == b"up"


def test_many_tiny_shards_are_pointed_out(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "set" / "s_000.tar", [("k.txt", b"")])
    for number in range(1, 120):
        shutil.copyfile(first, tmp_path / "set" / f"s_{number:03d}.tar")
    assert any("very small" in one for one in plan_webdataset(tmp_path / "set").warnings)


def test_a_jsonl_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 0}\n\n{"n": 1}\n')
    report = prepare_jsonl(path)
    assert (tmp_path / "a.jsonl.idx").read_bytes() == b"".join(n.to_bytes(8, "little") for n in (0, 10, 19))
    assert report.num_lines == 2
    with pytest.raises(ConfigError):
        prepare_jsonl(path)
