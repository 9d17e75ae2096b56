"""Links that lead out of a dataset's folder: refused by type in every format, and read where they are meant."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.internals import (
    build_index,
    current,
    find_paths,
    lint,
    main,
    merge_index,
    prepare_webdataset,
    replace,
    within,
)
from tests.prepare.energon.test_run import write_tar

import penstock as ps
from penstock import merge, prepare_media, shuffle
from penstock.compat.energon import SystemFileStore
from penstock.compat.streaming import Stream, StreamingDataset
from penstock.errors import NotFound, PenstockError, UnsafeData
from penstock.store import LocalStore

SHARDS: dict[str, Any] = {"columns": {"id": "int", "text": "str"}, "size_limit": 200}
TEXTS = [{"id": one, "text": f"text {one} " * 5} for one in range(12)]
TOKENS = [{"tokens": list(range(1, 9))} for _ in range(12)]


def write(path: Path, format: str, samples: list[Any], **options: Any) -> Path:
    with ps.create(path, format=format, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return path


def mds(root: Path) -> Path:
    return write(root / "set", "mds", TEXTS, **SHARDS)


def csv(root: Path) -> Path:
    return write(root / "set", "csv", TEXTS, **SHARDS)


def json_shards(root: Path) -> Path:
    return write(root / "set", "json-shards", TEXTS, **SHARDS)


def webdataset(root: Path) -> Path:
    write_tar(root / "set" / "s" / "a.tar", [(f"k{one}.txt", b"text %d" % one) for one in range(4)])
    prepare_webdataset(root / "set", split_ratio=(1, 0, 0))
    return root / "set"


def folder(root: Path) -> Path:
    (root / "set" / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b.txt"):
        (root / "set" / name).write_text(name)
    return root / "set"


def flat_tokens(root: Path) -> Path:
    return write(root / "set.zarr", "flat-tokens", TOKENS)


def megatron(root: Path) -> Path:
    write(root / "set" / "x", "megatron", TOKENS, token_bytes=2)
    return root / "set" / "x"


def jsonl(root: Path) -> Path:
    (root / "set").mkdir()
    (root / "set" / "x.jsonl").write_text("".join(json.dumps(one) + "\n" for one in TEXTS))
    build_index(root / "set" / "x.jsonl")
    return root / "set" / "x.jsonl"


def pbin(root: Path) -> Path:
    (root / "set").mkdir()
    return write(root / "set" / "x.pbin", "pbin", TOKENS, token_bytes=2)


def parquet(root: Path) -> Path:
    (root / "set" / "sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        pq.write_table(pa.Table.from_pylist(TEXTS), root / "set" / f"{name}.parquet")
    return root / "set"


def hf(root: Path) -> Path:
    (root / "set").mkdir()
    table = pa.Table.from_pylist(TEXTS)
    with pa.OSFile(str(root / "set" / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    (root / "set" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (root / "set" / "dataset_info.json").write_text("{}")
    return root / "set"


# What makes it, and a file in its folder that is read, by its path from the folder of the dataset.
CASES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "mds": (mds, "set/shard.00001.mds"),
    "mds index": (mds, "set/index.json"),
    "mds side file": (mds, "set/.penstock"),
    "csv": (csv, "set/shard.00000.csv"),
    "csv meta": (csv, "set/shard.00000.csv.meta"),
    "json-shards": (json_shards, "set/shard.00000.json"),
    "tar": (webdataset, "set/s/a.tar"),
    "tar index": (webdataset, "set/s/a.tar.idx"),
    "info": (webdataset, "set/.nv-meta/.info.json"),
    "splits": (webdataset, "set/.nv-meta/split.yaml"),
    "sqlite": (webdataset, "set/.nv-meta/index.sqlite"),
    "folder": (folder, "set/sub/b.txt"),
    "flat-tokens chunk": (flat_tokens, "set.zarr/encoded_tokens/0"),
    "flat-tokens metadata": (flat_tokens, "set.zarr/encoded_tokens/.zarray"),
    "flat-tokens side file": (flat_tokens, "set.zarr.penstock"),
    "megatron bin": (megatron, "set/x.bin"),
    "megatron idx": (megatron, "set/x.idx"),
    "jsonl index": (jsonl, "set/x.idx"),
    "pbin side file": (pbin, "set/x.pbin.penstock"),
    "parquet": (parquet, "set/sub/b.parquet"),
    "hf": (hf, "set/data.arrow"),
    "hf state": (hf, "set/state.json"),
}


def read(path: Path, name: str, **options: Any) -> list[Any]:
    """All that opening may read: samples, side file, and what is found by name."""
    format = name.split()[0] if name.split()[0] in ("mds", "csv", "parquet", "hf", "folder", "megatron") else None
    given: Any = {"format": format, **options}
    source: Any = ps.open(path, **given)
    found = [source[index] for index in range(len(source))]
    _ = getattr(source, "manifest", None), getattr(source, "max_token_id", None)
    if name == "sqlite":
        given |= {"raw": True}
        assert ps.open(path, **given).get("k1.txt") == b"text 1"
    return [found, source.fingerprint]


def outside_of(root: Path) -> Path:
    """A folder that is not beside the dataset either."""
    return root.with_name(f"{root.name}-outside")


def move_out(root: Path, file: Path, kind: str) -> Path:
    """Put a link of a kind in the place of a file, or of its folder, which lies outside then."""
    outside = outside_of(root)
    outside.mkdir()
    if kind == "folder":
        target = outside / file.parent.name
        file.parent.rename(target)
        file.parent.symlink_to(target)
        return file.parent
    file.rename(outside / "data")
    if kind == "chain":
        (root / "inner").symlink_to(outside / "data")
        file.symlink_to(root / "inner")
    elif kind == "relative":
        file.symlink_to(os.path.relpath(outside / "data", file.parent))
    else:
        file.symlink_to(outside / "data")
    return file


def same(first: Any, second: Any) -> bool:
    return repr(first) == repr(second)


@pytest.mark.parametrize("kind", ["absolute", "relative", "chain"])
@pytest.mark.parametrize("name", CASES)
def test_a_link_out_of_the_folder(name: str, kind: str, tmp_path: Path) -> None:
    make, file = CASES[name]
    path = make(tmp_path)
    before = read(path, name)
    move_out(tmp_path, tmp_path / file, kind)
    with pytest.raises(UnsafeData, match="--follow-links"):
        read(path, name)
    assert same(read(path, name, follow_links=True), before)
    with pytest.raises(UnsafeData):
        read(path, name, trust=True)


@pytest.mark.parametrize("name", ["tar", "folder", "flat-tokens chunk", "parquet", "splits"])
def test_a_folder_that_is_a_link_out(name: str, tmp_path: Path) -> None:
    make, file = CASES[name]
    path = make(tmp_path)
    before = read(path, name)
    move_out(tmp_path, tmp_path / file, "folder")
    with pytest.raises(UnsafeData, match="--follow-links"):
        read(path, name)
    assert same(read(path, name, follow_links=True), before)


@pytest.mark.parametrize("kind", ["relative", "absolute"])
@pytest.mark.parametrize("name", [one for one in CASES if one not in ("parquet", "folder")])
def test_links_that_stay_inside(name: str, kind: str, tmp_path: Path) -> None:
    make, file = CASES[name]
    path = make(tmp_path)
    before = read(path, name)
    inside = path if path.is_dir() else path.parent
    (inside / ".kept").mkdir()
    (tmp_path / file).rename(inside / ".kept" / "data")
    target = inside / ".kept" / "data"
    (tmp_path / file).symlink_to(target if kind == "absolute" else os.path.relpath(target, (tmp_path / file).parent))
    assert same(read(path, name), before)


@pytest.mark.parametrize("name", ["mds", "tar", "folder", "flat-tokens chunk", "megatron bin", "parquet", "hf"])
@pytest.mark.parametrize("follow", [False, True])
def test_links_that_lead_nowhere(name: str, follow: bool, tmp_path: Path) -> None:
    make, file = CASES[name]
    path = make(tmp_path)
    (tmp_path / file).unlink()
    (tmp_path / file).symlink_to(tmp_path / "nothing")
    with pytest.raises(PenstockError):
        read(path, name, follow_links=follow)


@pytest.mark.parametrize("name", ["mds", "tar", "folder", "flat-tokens chunk", "jsonl index", "pbin side file", "hf"])
def test_the_datasets_own_path_may_be_a_link(name: str, tmp_path: Path) -> None:
    path = CASES[name][0](tmp_path)
    before = read(path, name)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / path.name).symlink_to(path)
    if name == "jsonl index":
        (tmp_path / "here" / "x.idx").symlink_to(tmp_path / "set" / "x.idx")  # where its file is
    if name == "pbin side file":
        (tmp_path / "here" / "x.pbin.penstock").symlink_to(tmp_path / "set" / "x.pbin.penstock")
    if name == "flat-tokens chunk":
        (tmp_path / "here" / "set.zarr.penstock").symlink_to(tmp_path / "set.zarr.penstock")
    assert read(tmp_path / "here" / path.name, name)[1] == before[1]


def test_a_pair_may_be_two_links_to_a_pair(tmp_path: Path) -> None:
    path = megatron(tmp_path)
    (tmp_path / "here").mkdir()
    for suffix in (".idx", ".bin", ".idx.penstock"):
        (tmp_path / "here" / f"x{suffix}").symlink_to(f"{path}{suffix}")
    for named in ("x", "x.idx", "x.bin"):
        assert same(read(tmp_path / "here" / named, "megatron"), read(path, "megatron"))


def test_the_cache_of_the_hub(tmp_path: Path) -> None:
    repository = tmp_path / "datasets--a--b"
    snapshot, blobs = repository / "snapshots" / "0123abc", repository / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(mds(tmp_path).iterdir())):
        snapshot.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert len(read(snapshot, "mds")[0]) == len(TEXTS)
    shard = snapshot / "shard.00001.mds"
    other = tmp_path / "datasets--a--c" / "blobs"
    other.mkdir(parents=True)
    shutil.copyfile(shard, other / "1")
    shard.unlink()
    shard.symlink_to("../../../datasets--a--c/blobs/1")
    with pytest.raises(UnsafeData):
        read(snapshot, "mds")


# --- what is checked is what is read, at little cost ----------------------------------------------------------------


def test_a_link_that_changes_between_check_and_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "real").write_bytes(b"fine")
    (tmp_path / "secret").write_bytes(b"secret")
    link = tmp_path / "set" / "link"
    link.symlink_to(tmp_path / "secret")
    placed: Callable[[int, str], str] = current("place_of_descriptor")

    def changed_back(fd: int, path: str) -> str:
        link.unlink()
        link.symlink_to("real")  # the name is innocent again when it is looked at
        return placed(fd, path)

    replace(monkeypatch, "place_of_descriptor", changed_back)
    store = within(LocalStore(), str(tmp_path / "set"))
    with pytest.raises(UnsafeData):
        store.get(str(link))


def test_a_folder_that_is_moved_and_comes_back_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a").write_bytes(b"a")
    store = within(LocalStore(), str(tmp_path / "set"))
    assert store.get(str(tmp_path / "set" / "a")) == b"a"
    (tmp_path / "set" / "b").write_bytes(b"b")
    (tmp_path / "set").rename(tmp_path / "moved")
    (tmp_path / "set").symlink_to("moved")
    assert store.get(str(tmp_path / "set" / "b")) == b"b"


def count(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> dict[str, int]:
    """Calls of `os` that look at files."""
    found = dict.fromkeys(("readlink", "lstat", "stat"), 0)

    def counted(name: str, call: Any) -> Any:
        def one(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return call(*args, **kwargs)

        return one

    with monkeypatch.context() as patched:
        for name in found:
            patched.setattr(os, name, counted(name, getattr(os, name)))
        work()
    return found


def test_one_more_call_a_file_and_none_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "set", "mds", TEXTS * 4, **SHARDS)
    assert len(list(path.glob("*.mds"))) > len(TEXTS) * 4 > 8
    for way in ("mmap", "pread"):
        source: Any = ps.open(path, read=way)
        source[0]
        calls = count(monkeypatch, lambda: [source[index] for index in range(len(source))])  # noqa: B023
        assert calls["readlink"] == len(source) - 1  # one sample a shard
        assert calls["lstat"] == 0
        again = count(monkeypatch, lambda: [source[index] for index in range(len(source))])  # noqa: B023
        # Files that aren't mapped are opened for each read: it is asked then whether the index is still the opened one.
        assert again == {"readlink": 0, "lstat": 0, "stat": len(source) if way == "pread" else 0}


def test_opening_looks_at_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (write(tmp_path / str(n), "mds", TEXTS * n, **SHARDS) for n in (1, 10))
    assert len(list(many.iterdir())) > 5 * len(list(few.iterdir()))
    assert count(monkeypatch, lambda: ps.open(few)) == count(monkeypatch, lambda: ps.open(many))
    prepared = []
    for n in (2, 20):
        for number in range(n):
            write_tar(tmp_path / f"t{n}" / f"{number}.tar", [(f"k{number}.txt", b"x")])
        prepare_webdataset(tmp_path / f"t{n}", split_ratio=(1, 0, 0))
        prepared.append(count(monkeypatch, lambda: ps.open(tmp_path / f"t{n}")))  # noqa: B023
    assert prepared[0] == prepared[1]


# --- verbs -----------------------------------------------------------------------------------------------------------


def run(args: list[str]) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main(args)
    return int(ended.value.code or 0)


COMMANDS: dict[str, list[str]] = {
    "info": ["info", "SET"],
    "head": ["head", "SET", "-n", "12"],
    "energon preview": ["energon", "preview", "SET", "-n", "12"],
    "verify": ["verify", "SET", "--depth", "full"],
    "convert": ["convert", "SET", "OUT", "--to", "jsonl"],
    "merge": ["merge", "SET", "-o", "OUT"],
    "shuffle": ["shuffle", "SET", "-o", "OUT", "--seed", "1"],
    "split": ["split", "SET", "-o", "OUT", "--ratio", "1,1"],
    "filter": ["filter", "SET", "-o", "OUT", "--where", "id > 2"],
    "split --only": ["split", "SET", "-o", "OUT", "--parts", "1", "--only", "0"],
    "energon lint": ["energon", "lint", "SET"],
    "plan": ["plan", "RECIPE", "--global-batch", "2", "--profile", "6"],
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_asks(verb: str, tmp_path: Path) -> None:
    path = mds(tmp_path)
    (tmp_path / "recipe.json").write_text(json.dumps({"source": {"kind": "open", "path": str(path)}}))
    move_out(tmp_path, path / "shard.00001.mds", "absolute")
    places = {"SET": str(path), "OUT": str(tmp_path / "out"), "RECIPE": str(tmp_path / "recipe.json")}
    args = [places.get(one, one) for one in COMMANDS[verb]]
    assert run(args) == (1 if verb.startswith(("verify", "energon")) else UnsafeData.exit_status)
    assert run([*args, "--follow-links"]) == 0


def test_tars_ask(tmp_path: Path) -> None:
    path = webdataset(tmp_path)
    move_out(tmp_path, path / "s" / "a.tar", "absolute")
    for work in (
        lambda **more: merge([path], tmp_path / "merged", overwrite=True, **more),
        lambda **more: shuffle(path, tmp_path / "mixed", seed=1, overwrite=True, **more),
        lambda **more: lint(path, **more).findings or ps.open(path, **more)[0],
        lambda **more: prepare_webdataset(path, split_ratio=(1, 0, 0), overwrite=True, **more),
        lambda **more: prepare_media(path, by="glob", patterns="*.txt", **more),
    ):
        with pytest.raises(UnsafeData):
            work()
        work(follow_links=True)


def test_an_index_over_parts_that_are_links(tmp_path: Path) -> None:
    path = mds(tmp_path)
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "one").symlink_to(path)
    with pytest.raises(UnsafeData):
        merge_index(tmp_path / "all", [tmp_path / "all" / "one"])
    assert merge_index(tmp_path / "all", [tmp_path / "all" / "one"], follow_links=True) > 1


@pytest.mark.parametrize("kind", ["absolute", "folder"])
def test_inputs_of_pack(kind: str, tmp_path: Path) -> None:
    (tmp_path / "texts" / "sub").mkdir(parents=True)
    file = tmp_path / "texts" / "sub" / "a.jsonl"
    file.write_text('{"text": "x"}\n')
    move_out(tmp_path, file, kind)
    with pytest.raises(UnsafeData, match="--follow-links"):
        find_paths([tmp_path / "texts"])
    assert find_paths([tmp_path / "texts"], follow_links=True) == [str(file)]
    assert find_paths([file]) == [str(file)]  # named


def test_verify_says_it_and_goes_on(tmp_path: Path) -> None:
    for name in ("mds", "tar", "folder", "flat-tokens chunk", "megatron bin", "hf", "parquet"):
        make, file = CASES[name]
        (tmp_path / name).mkdir()
        path = make(tmp_path / name)
        move_out(tmp_path / name, tmp_path / name / file, "absolute")
        format = name.split()[0] if name.split()[0] in ("parquet", "hf", "folder", "megatron") else None
        findings = ps.verify(path, depth="full", format=format)
        assert any(one.severity == "error" and "link" in str(one) for one in findings), name
        assert not [
            one for one in ps.verify(path, depth="full", format=format, follow_links=True) if one.severity == "error"
        ]


# --- nothing is written outside --------------------------------------------------------------------------------------


def test_repair_and_prepare_write_nothing_outside(tmp_path: Path) -> None:
    path = webdataset(tmp_path)
    move_out(tmp_path, path / ".nv-meta" / ".info.json", "folder")
    before = {one.name: one.read_bytes() for one in outside_of(tmp_path).rglob("*") if one.is_file()}
    (path / "s" / "a.tar.idx").unlink()
    for work in (
        lambda: ps.repair(path, write=True),
        lambda: prepare_webdataset(path, split_ratio=(1, 0, 0), overwrite=True),
        lambda: prepare_media(path, by="glob", patterns="*.txt"),
        lambda: ps.verify(path) and ps.open(path)[0],
    ):
        with pytest.raises(UnsafeData):
            work()
    assert {one.name: one.read_bytes() for one in outside_of(tmp_path).rglob("*") if one.is_file()} == before


def test_a_guarded_store_writes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(b"a")
    (tmp_path / "set" / "sub").symlink_to(tmp_path / "outside")
    store = LocalStore().within(str(tmp_path / "set"))
    inner = str(tmp_path / "set" / "sub" / "a")
    for work in (
        lambda: store.stage(inner, overwrite=True),
        lambda: store.stage_folder(inner, overwrite=True),
        lambda: store.claim(inner),
        lambda: store.delete(inner),
        lambda: store.link(inner, inner + "2"),
    ):
        with pytest.raises(UnsafeData):
            work()
    assert os.listdir(tmp_path / "outside") == ["a"]


# --- recipes, processes, and the names of others ---------------------------------------------------------------------


def test_recipes_record_it_and_ask_for_it(tmp_path: Path) -> None:
    for name in ("mds", "tar", "folder", "flat-tokens chunk", "megatron bin", "jsonl index", "pbin side file", "hf"):
        (tmp_path / name).mkdir()
        path = CASES[name][0](tmp_path / name)
        format = "folder" if name == "folder" else None
        source: Any = ps.open(path, format=format, follow_links=True)
        assert source.recipe()["follow_links"] is True, name
        assert "follow_links" not in ps.open(path, format=format).recipe()
        with pytest.raises(UnsafeData, match="--follow-links"):
            ps.open_recipe(source.recipe())
        again = ps.open_recipe(source.recipe(), follow_links=True)
        assert again.recipe() == source.recipe()
        assert again.fingerprint == source.fingerprint


def test_metadatasets(tmp_path: Path) -> None:
    path = webdataset(tmp_path)
    move_out(tmp_path, path / "s" / "a.tar", "absolute")
    (tmp_path / "all.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {path: ./set}}\n"
    )
    with pytest.raises(UnsafeData):
        ps.open_metadataset(tmp_path / "all.yaml", mode="val")[0]
    assert ps.open_metadataset(tmp_path / "all.yaml", mode="val", follow_links=True)[0]


def test_the_guard_goes_to_other_processes(tmp_path: Path) -> None:
    path = mds(tmp_path)
    source: Any = pickle.loads(pickle.dumps(ps.open(path)))
    move_out(tmp_path, path / "shard.00001.mds", "absolute")
    with pytest.raises(UnsafeData):
        [source[index] for index in range(len(source))]


def test_the_names_of_others(tmp_path: Path) -> None:
    path = mds(tmp_path)
    move_out(tmp_path, path / "shard.00001.mds", "absolute")
    with pytest.raises(UnsafeData):
        list(StreamingDataset(local=str(path), batch_size=1))
    streams = [Stream(local=str(path), follow_links=True)]
    assert len(list(StreamingDataset(streams=streams, batch_size=1))) == len(TEXTS)
    (tmp_path / "media").mkdir()
    media = folder(tmp_path / "media")
    (media / "a.txt").rename(tmp_path / "b.txt")
    (media / "a.txt").symlink_to(tmp_path / "b.txt")
    with pytest.raises(UnsafeData):
        SystemFileStore(media)["a.txt"]
    assert SystemFileStore(media, follow_links=True)["a.txt"]


def test_a_loop_of_links_is_typed(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "x.jpg").symlink_to("y.jpg")
    (path / "y.jpg").symlink_to("x.jpg")
    for follow in (False, True):
        with pytest.raises(NotFound):
            len(ps.open(path, format="folder", follow_links=follow))
