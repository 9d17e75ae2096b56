"""What every version of Energon left is read as Energon reads it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.internals import lint, open_raw, prepare_webdataset, read_splits

import penstock as ps
from penstock.errors import ConfigError, Corrupt
from penstock.store import LocalStore
from penstock.testing import CountingStore
from penstock.types import OpenOptions

from .conftest import VERSIONS, golden_json, lay_out

READER = golden_json("reader.json")
TOLD = {"__key__", "__restore_key__", "__sources__", "__subflavors__"}


def open_as(name: str, root: Path, split: str) -> Any:
    """A split, by the split file that the name of the case gives after a colon."""
    store = LocalStore()
    _, _, splits = name.partition(":")
    read = read_splits(store, str(root), [splits]) if splits else None
    return open_raw(store, str(root), OpenOptions(split=split, raw=True), read)


@pytest.mark.parametrize("name", sorted(READER))
def test_as_energon_reads_it(name: str, tmp_path: Path) -> None:
    root = lay_out(name.partition(":")[0], tmp_path / "set")
    if name.startswith("seed002"):  # as its text has it, without indexes of shards
        before = files_in(root)
        require_as_read(name, root)
        assert files_in(root) == before
        prepare_webdataset(root, tar_index_only=True)
        assert files_in(root) > before
    require_as_read(name, root)


def files_in(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file()}


def require_as_read(name: str, root: Path) -> None:
    for split, expected in READER[name]["splits"].items():
        if expected.get("error") == "EmptyDatasetError":
            assert len(open_as(name, root, split)) == 0
            continue
        if "error" in expected:
            with pytest.raises((ConfigError, Corrupt)):
                open_as(name, root, split)
            continue
        source = open_as(name, root, split)
        kept = [row for row in expected["samples"] if row is not None]
        assert len(source) == len(kept)
        for samples in ([source[index] for index in range(len(kept))], list(source)):
            for sample, (index, key, shard, parts, names) in zip(samples, kept, strict=True):
                assert sample["__key__"] == key
                assert sample["__restore_key__"] == ("Webdataset", index)
                (info,) = sample["__sources__"]
                assert (info.index, info.shard_name, list(info.file_names)) == (index, shard, names)
                found = {part: data for part, data in sample.items() if part not in TOLD}
                assert {part: hashlib.sha256(data).hexdigest()[:16] for part, data in found.items()} == parts


def test_a_shard_without_index_is_scanned_once_a_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = lay_out("seed002", tmp_path / "set")
    stores = [CountingStore(LocalStore()) for _ in range(3)]
    samples = []
    for store in stores:
        source = open_raw(store, str(root), OpenOptions(split="train", raw=True, read="pread"))
        samples.append([source[index] for index in range(len(source))])
    assert samples[0] == samples[1] == samples[2]
    assert stores[1].reads == stores[2].reads < stores[0].reads
    assert len([one for one in caplog.records if "tar-index-only" in one.message]) == 3  # once a source, not a shard
    with (root / "shards" / "shard_000.tar").open("r+b") as file:  # another file is not taken for the one scanned
        file.truncate(512)
    with pytest.raises(ps.errors.FormatError):
        open_raw(LocalStore(), str(root), OpenOptions(split="train", raw=True))[0]


def test_what_lint_and_verify_say_of_shards_without_index(tmp_path: Path) -> None:
    root = lay_out("seed002", tmp_path / "set")
    (finding,) = [one for one in ps.verify(root) if one.severity == "error"]
    assert finding.code == "webdataset.index"
    shards = len(list(root.rglob("*.tar")))
    assert finding.found is not None
    assert f"{shards} of {shards} shards have no index" in finding.found
    report = lint(root)
    assert [one for one in report.findings if one.code == "webdataset.sample"] == []
    first = next(root.rglob("*.tar"))
    first.unlink()
    found = [one for one in lint(root).findings if one.code == "webdataset.sample"]
    assert len(found) == 1
    assert "more samples" in found[0].found


@pytest.mark.parametrize("name", VERSIONS)
def test_by_key_and_name(name: str, tmp_path: Path) -> None:
    root = lay_out(name, tmp_path / "set")
    splits = READER[name]["splits"]
    for split, expected in splits.items():
        source: Any = ps.open(root, split=split, raw=True)
        for place, (_, key, _, parts, names) in enumerate(expected["samples"]):
            assert source.index_of(key) == place
            assert source.key_of(place) == key
            for file in names:
                part = file[len(key) + 1 :]
                if names.count(file) == 1:
                    assert hashlib.sha256(source.get(file)).hexdigest()[:16] == parts[part]
        for other in splits:
            for _, key, _, _, names in splits[other]["samples"]:
                source.get(names[0])
                if other != split:
                    with pytest.raises(ps.errors.NotFound):
                        source.index_of(key)
        for missing in ("no such key.txt", "x", "", ".a", "\udcff.txt", "s0_000.nope"):
            with pytest.raises(ps.errors.NotFound):
                source.get(missing)


def test_of_a_part_that_repeats_the_first_is_got_and_the_last_is_read(tmp_path: Path) -> None:
    source: Any = ps.open(lay_out("awkward", tmp_path / "set"), split="train", raw=True)
    first, last = source.get("duppart.txt"), source[source.index_of("duppart")]["txt"]
    assert (len(first), len(last)) == (1, 2)


@pytest.mark.parametrize("name", VERSIONS)
@pytest.mark.parametrize("depth", ["quick", "sample", "full"])
def test_what_energon_wrote_is_clean(name: str, depth: Any, tmp_path: Path) -> None:
    root = lay_out(name, tmp_path / "set")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    findings = ps.verify(root, depth=depth)
    # In `awkward` two members that end in .json hold a text of one letter.
    codes = {one.code for one in findings if one.severity == "error"}
    assert codes <= ({"webdataset.json"} if name == "awkward" and depth == "full" else set())
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_without_an_index_names_are_found_by_headers(tmp_path: Path) -> None:
    root = lay_out("captioning", tmp_path / "set")
    with_index: Any = ps.open(root, split="val", raw=True)
    names = [name for sample in with_index for name in sample["__sources__"][0].file_names]
    expected = [with_index.get(name) for name in names]
    (root / ".nv-meta" / "index.sqlite").unlink()
    without: Any = ps.open(root, split="val", raw=True)
    assert [without.get(name) for name in names] == expected
    assert without.index_of(without.key_of(3)) == 3


@pytest.mark.parametrize("folder", ["a#b", "a?b", "a%20b", "a b", "ä{1,2}"])
def test_odd_folder_names(folder: str, tmp_path: Path) -> None:
    root = lay_out("7_3_2", tmp_path / folder)
    source: Any = ps.open(root, raw=True)
    assert source.get("s0_000.txt") == source[source.index_of("s0_000")]["txt"]
