"""Folders in an object store: what is visible when, and what a writer that ended early leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store.objects import counted_requests, objects

import penstock as ps
from penstock.cli.main import main
from penstock.convert.samples import SampleJob
from penstock.errors import ConfigError, NotFound, PrepareError
from penstock.formats._folders import LAST_FILES
from penstock.store import object_folder
from penstock.store._objects import Objects
from penstock.store.cache import CachedStore
from penstock.store.memory import MemoryStore
from penstock.store.object_folder import ObjectFolder, require_no_writer
from penstock.store.place import resolve
from penstock.store.put import put

FORMATS = ("webdataset", "folder", "flat-tokens", "mds")
OPTIONS: dict[str, dict[str, Any]] = {
    "webdataset": {"maxcount": 2},
    "folder": {},
    "flat-tokens": {"chunk_tokens": 8, "chunk_starts": 4},
    "mds": {"columns": {"n": "int"}, "size_limit": 40},
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def url(tmp_path: Path, s3_server: str) -> str:
    return f"s3://bucket/folders/{tmp_path.name}/x"


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is uploaded."""
    made: list[str] = []
    original = Objects.put

    def put(self: Objects, key: str, local_path: str, *, create: bool) -> bool:
        made.append(key.rpartition("/x/")[2])
        return original(self, key, local_path, create=create)

    monkeypatch.setattr(Objects, "put", put)
    return made


def sample(format: str, number: int) -> dict[str, Any]:
    if format == "flat-tokens":
        return {"tokens": [number + 1, 2, 3, 4]}
    return {"n": number} if format == "mds" else {"__key__": f"k{number}", "txt": f"text {number}"}


def begin(target: str, format: str, samples: int, **options: Any) -> Any:
    writer = ps.create(target, format=format, **OPTIONS[format], **options)
    for number in range(samples):
        writer.write(sample(format, number))
    return writer


def write(target: str, format: str, samples: int = 9, **options: Any) -> None:
    with begin(target, format, samples, **options):
        pass


def on_disk(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def kill(writer: Any) -> None:
    """Leaves what a killed writer leaves, once what it had finished is up."""
    work = getattr(writer, "_work", None)
    if hasattr(work, "facts"):
        work.finish()
    folder = getattr(writer, "_folder", None) or writer._out._folder
    folder.note_failure()
    writer.abort()


def same_but_databases(found: dict[str, bytes], expected: dict[str, bytes]) -> bool:
    return found.keys() == expected.keys() and all(
        data == expected[name] for name, data in found.items() if not name.endswith(".sqlite")
    )


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_files_as_on_disk_and_the_last_one_last(
    format: str, url: str, tmp_path: Path, puts: list[str]
) -> None:
    write(url, format)
    write(str(tmp_path / "here"), format)
    assert same_but_databases(objects(url), on_disk(tmp_path / "here"))
    inside = [name for name in puts if not name.endswith(".penstock") or format == "folder"]
    assert inside[-1] in LAST_FILES[format]
    assert len(ps.open(url, format=format, **({"raw": True} if format == "webdataset" else {}))) == 9


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_unfinished_is_said_and_gone_on_with(
    format: str, url: str, tmp_path: Path, puts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_folder, "SAVE_EVERY", 1)
    kill(begin(url, format, 9))
    left = objects(url)
    assert len(left) > 2
    for given in ({}, {"format": format}):
        with pytest.raises(NotFound, match="a write is running or was interrupted"):
            ps.open(url, **given)
    puts.clear()
    write(url, format)
    first = next(name for name in left if "staged" not in name)
    assert first not in puts, "uploaded again"
    write(str(tmp_path / "here"), format)
    assert same_but_databases(objects(url), on_disk(tmp_path / "here"))


@pytest.mark.parametrize("format", FORMATS)
def test_other_samples_leave_nothing_of_a_killed_writer(format: str, url: str, tmp_path: Path) -> None:
    kill(begin(url, format, 30))
    write(url, format, 3)
    write(str(tmp_path / "here"), format, 3)
    assert same_but_databases(objects(url), on_disk(tmp_path / "here"))


@pytest.mark.parametrize("format", FORMATS)
def test_a_second_writer_and_a_second_dataset_are_refused(format: str, url: str) -> None:
    with begin(url, format, 3), pytest.raises(PrepareError, match="another run is writing"):
        begin(url, format, 3)
    before = objects(url)
    with pytest.raises(ConfigError, match="the output exists"):
        begin(url, format, 4)
    with pytest.raises(ConfigError, match=r"can't be replaced atomically.*Write to a new path"):
        begin(url, format, 4, overwrite=True)
    assert objects(url) == before


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", ["error", "abort"])
def test_an_error_leaves_nothing(format: str, how: str, url: str) -> None:
    if how == "abort":
        begin(url, format, 9).abort()
    else:
        with pytest.raises(ZeroDivisionError), begin(url, format, 9):
            raise ZeroDivisionError
    assert objects(url) == {}


@pytest.mark.parametrize("format", ["webdataset", "folder", "flat-tokens"])
def test_strangers_files_are_not_written_among(format: str, url: str) -> None:
    store, root = resolve(url)
    staged = store.stage(f"{root}/notes.txt")
    staged.write(b"mine")
    staged.commit()
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"the output exists|notes\.txt|not a flat-tokens group"):
            begin(url, format, 3, overwrite=overwrite)
    assert objects(url) == {"notes.txt": b"mine"}


def test_splits_join(url: str, tmp_path: Path) -> None:
    for target in (url, str(tmp_path / "here")):
        first = begin(target, "flat-tokens", 4, split="train")
        second = begin(target, "flat-tokens", 3, split="validation")
        second.commit()
        first.commit()
    assert objects(url) == on_disk(tmp_path / "here")
    assert objects(f"{url}.penstock".rpartition("/")[0])["x.penstock"] == (tmp_path / "here.penstock").read_bytes()
    assert [len(ps.open(url, split=split)) for split in ("train", "validation")] == [4, 3]


@pytest.mark.parametrize("format", ["webdataset", "folder"])
def test_a_conversion_killed_when_its_output_is_visible_is_complete(
    format: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it read the output back: the same command said that the output exists."""
    write(str(tmp_path / "src"), "folder")

    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SampleJob, "check", killed)
        patch.setattr(CachedStore, "sweep_folder", lambda *_: None)
        patch.setattr(ObjectFolder, "_end", lambda self: self._held.close())
        with pytest.raises(KeyboardInterrupt):
            ps.convert(tmp_path / "src", url, to=format)
    assert any("writing" in name for name in objects(url))
    report = ps.convert(tmp_path / "src", url, to=format)
    assert report.samples == 9
    assert not [name for name in objects(url) if "staged" in name]
    with pytest.raises(ConfigError, match="the output exists"):
        ps.convert(tmp_path / "src", url, to=format)


def test_a_split_that_was_killed_leaves_the_other(url: str) -> None:
    write(url, "flat-tokens", 4, split="train")
    kill(begin(url, "flat-tokens", 3, split="validation"))
    assert len(ps.open(url, split="train")) == 4
    write(url, "flat-tokens", 3, split="validation")
    assert not [name for name in objects(url) if "staged" in name]


def test_prepare_does_not_take_half_a_dataset(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    kill(begin(url, "webdataset", 9))
    with pytest.raises(SystemExit) as ended:
        main(["prepare", url, "--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"])
    assert ended.value.code == 9
    assert "a write is running or was interrupted" in capsys.readouterr().err
    assert ".nv-meta/.info.json" not in objects(url)


@pytest.mark.parametrize("format", ["webdataset", "folder", "flat-tokens"])
def test_requests_grow_with_files(format: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted_requests(monkeypatch)
    counts = []
    for samples in (8, 80):
        made.clear()
        write(f"{url}{samples}", format, samples)
        counts.append((len(made), made.count("list")))
    assert counts[1][0] <= 12 * counts[0][0]
    assert counts[1][1] == counts[0][1]


def test_what_is_said_of_files_that_are_up_grows_as_they_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_folder, "SAVE_EVERY", 2)
    store = MemoryStore()
    said: list[int] = []
    put = object_folder.put
    get, get_ranges = MemoryStore.get, MemoryStore.get_ranges

    def counted_put(to: Any, path: str, data: bytes, **how: Any) -> None:
        said.append(len(data))
        put(to, path, data, **how)

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            found = original(*given)
            said.append(len(found) if isinstance(found, bytes) else sum(map(len, found)))
            return found

        return call

    monkeypatch.setattr(object_folder, "put", counted_put)
    monkeypatch.setattr(MemoryStore, "get", counted(get))
    monkeypatch.setattr(MemoryStore, "get_ranges", counted(get_ranges))
    sums: list[int] = []
    for files in (20, 200):
        said.clear()
        folder = ObjectFolder(store, f"out{files}", ("last",), overwrite=False, part="", clashes=None)
        for name in (*(f"{number:05d}" for number in range(files)), "last"):
            staged = folder.stage(name)
            staged.write(b"x")
            staged.commit()
        folder.commit()
        sums.append(sum(said))
    assert sums[1] <= 12 * sums[0]
    assert [path for path in store.list("out200") if "writing" in path] == []


def test_a_listing_that_is_refused_is_said_before_the_first_byte(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.errors import Denied

    def denied(self: Objects, key: str, **named: Any) -> list[str]:
        raise Denied("the store rejected the credentials", path=key)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "list", denied)
        with pytest.raises(Denied):
            ObjectFolder(*resolve(url), ("last",), overwrite=False, part="", clashes=None)
    assert objects(url) == {}


def test_names_that_urls_escape(url: str, tmp_path: Path) -> None:
    odd = "a b%20c#é?"
    write(f"{url}/{odd}", "webdataset", 3)
    assert {name.partition("/")[0] for name in objects(url)} == {odd}
    assert len(ps.open(f"{url}/{odd}", raw=True)) == 3
    assert json.loads(objects(url)[f"{odd}/.nv-meta/.info.json"])["shard_counts"] == {
        "shard_000000.tar": 2,
        "shard_000001.tar": 1,
    }


@pytest.mark.parametrize("format", FORMATS)
def test_shared_work_in_the_same_folder(format: str, url: str) -> None:
    """It puts its plan, then looks for marks of writers; a writer puts its mark, then looks for a plan."""
    store, path = resolve(url)
    put(store, f"{path}/.work/plan", b"{}")
    with pytest.raises((PrepareError, ConfigError), match=r"another run is|files with these names|exists"):
        begin(url, format, 1)
    assert list(objects(url)) == [".work/plan"]
    store.delete(f"{path}/.work/plan")
    with begin(url, "mds", 3), pytest.raises(PrepareError, match="another run is writing"):
        require_no_writer(store, f"{path}/index.json")
