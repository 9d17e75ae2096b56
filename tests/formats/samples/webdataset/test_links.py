"""Members that aren't regular files, and leftovers of other systems; expected values are those that were packed."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import Corrupt

Members = list[tuple[str, "bytes | Callable[[tarfile.TarInfo], Any] | None"]]


def _hard(target: str) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = tarfile.LNKTYPE, target

    return change


def _symbolic(target: str) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = tarfile.SYMTYPE, target

    return change


def _fifo(info: tarfile.TarInfo) -> None:
    info.type = tarfile.FIFOTYPE


def _pack(path: Path, members: Members, layout: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=layout) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            data = content if isinstance(content, bytes) else b""
            info.size = len(data)
            if callable(content):
                content(info)
            tar.addfile(info, io.BytesIO(data))
    return path


def _parts(sample: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: value for name, value in sample.items() if not name.startswith("__")}


LONG = "d" * 120
LINKED: Members = [
    ("a.jpg", b"first picture"),
    ("a.txt", b"one"),
    ("b.jpg", _hard("a.jpg")),  # before the regular part of its sample
    ("b.txt", b"two"),
    ("b.json", _symbolic("store/shared.json")),  # the target comes later, in another folder
    ("store/shared.json", b"{}"),
    ("store/c.txt", _symbolic("../a.txt")),
    ("store/c.jpg", _hard("./b.jpg")),  # a link to a link
    ("store/c.cls", b"3"),
    (f"{LONG}/e.bin", b"long"),
    ("f.txt", b"six"),
    ("f.bin", _hard(f"{LONG}/e.bin")),  # a target that needs a header of its own
    ("f.png", _symbolic("/etc/hostname")),  # outside the shard
    ("f.fifo", _fifo),
]
EXPECTED = {
    "a": {"jpg": b"first picture", "txt": b"one"},
    "b": {"txt": b"two", "jpg": b"first picture", "json": b"{}"},
    "store/shared": {"json": b"{}"},
    "store/c": {"cls": b"3", "txt": b"one", "jpg": b"first picture"},
    f"{LONG}/e": {"bin": b"long"},
    "f": {"txt": b"six", "bin": b"long"},
}


@pytest.fixture(scope="module", params=[tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
def linked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("linked")
    _pack(root / "s.tar", LINKED, request.param)
    penstock.prepare(root, split_ratio=[1, 0, 0], workers=1)
    return root


@pytest.mark.parametrize("read", ["mmap", "pread"])
def test_links_within_a_shard_are_resolved(linked: Path, read: Any) -> None:
    source = penstock.open(linked, split="train", raw=True, read=read)
    assert {one["__key__"]: _parts(one) for one in source} == EXPECTED
    assert {source[i]["__key__"]: _parts(source[i]) for i in range(len(source))} == EXPECTED
    batch = source.get_batch(np.arange(len(source)))
    assert batch["jpg"] == [EXPECTED[key].get("jpg") for key in batch["__key__"]]
    assert source.get("b.jpg") == b"first picture"
    assert source.get("b.txt") == b"two"


def test_indexes_stay_as_energon_writes_them(linked: Path) -> None:
    """Energon's index holds regular members only: places as tarfile reads them, with the headers before a member."""
    offsets = np.frombuffer((linked / "s.tar.idx").read_bytes(), "<u8").tolist()
    with tarfile.open(linked / "s.tar") as tar:
        regular = [one for one in tar.getmembers() if one.isreg()]
        keys = [one.name.rpartition("/")[0] + "/" + one.name.rpartition("/")[2].partition(".")[0] for one in regular]
        starts = [one.offset for one, key, before in zip(regular, keys, ["", *keys], strict=False) if key != before]
    assert offsets[:-1] == starts
    assert json.loads((linked / ".nv-meta/.info.json").read_text())["shard_counts"] == {"s.tar": len(starts)}


def test_what_energon_reads_lacks_the_links(linked: Path) -> None:
    """Energon opens the range of a sample as a tar of its own, and takes its regular members."""
    data = (linked / "s.tar").read_bytes()
    offsets = np.frombuffer((linked / "s.tar.idx").read_bytes(), "<u8").tolist()
    read = {}
    for start, stop in itertools.pairwise(offsets):
        with tarfile.open(fileobj=io.BytesIO(data[start:stop])) as tar:
            for one in tar:
                if one.isreg():
                    _, _, part = one.name.rpartition("/")[2].partition(".")
                    read.setdefault(one.name[: -len(part) - 1], {})[part] = tar.extractfile(one).read()  # type: ignore[union-attr]
    assert read["b"] == {"txt": b"two"}
    assert read["store/c"] == {"cls": b"3"}


def test_other_members_are_counted(linked: Path, tmp_path: Path) -> None:
    details = penstock.open(linked, split="train", raw=True).details()
    assert details["ignored_members"] == "1 links, 1 special files"
    assert details["linked_parts"].startswith("5:")
    for depth in ("quick", "full"):
        found = [one for one in penstock.verify(linked, depth=depth) if one.code == "webdataset.ignored"]
        assert [one.severity for one in found] == ["warning"], depth
        assert "1 links, 1 special files" in str(found[0].found), depth
    report = penstock.convert(linked, tmp_path / "out", to="webdataset", workers=1)
    assert any("1 links, 1 special files" in one for one in report.lost)
    copy = penstock.open(tmp_path / "out", split="train", raw=True)
    assert {one["__key__"]: _parts(one) for one in copy} == EXPECTED


def test_prepare_counts_them(tmp_path: Path) -> None:
    _pack(tmp_path / "s.tar", LINKED)
    warnings = penstock.prepare(tmp_path, split_ratio=[1, 0, 0], workers=1).warnings
    assert any("5 parts are links" in one for one in warnings)
    assert any(one.startswith("1 links") for one in warnings)
    assert any(one.startswith("1 special files") for one in warnings)


def test_merged_samples_have_their_linked_parts(linked: Path, tmp_path: Path) -> None:
    penstock.merge([linked], tmp_path / "out", workers=1)
    merged = penstock.open(tmp_path / "out", split="train", raw=True)
    assert {one["__key__"]: _parts(one) for one in merged} == EXPECTED


@pytest.mark.parametrize("link", [_hard("a.txt"), _symbolic("a.txt")], ids=["hard", "symbolic"])
def test_a_sample_of_links_alone_is_an_error(tmp_path: Path, link: Any) -> None:
    _pack(tmp_path / "s.tar", [("a.txt", b"one"), ("b.txt", link), ("c.txt", b"three")])
    with pytest.raises(Corrupt, match="only of links") as caught:
        penstock.prepare(tmp_path, split_ratio=[1, 0, 0], workers=1)
    assert "--hard-dereference" in str(caught.value)
    assert "b.txt" in str(caught.value)


def test_links_that_no_list_records_are_a_finding(linked: Path) -> None:
    """As in datasets that Energon or an older version prepared."""
    (linked / ".nv-meta/index.members").rename(linked / ".nv-meta/away")
    try:
        found = [one for one in penstock.verify(linked, depth="full") if one.code == "webdataset.links"]
        assert [one.severity for one in found] == ["error"]
        assert "--tar-index-only" in str(found[0].fix)
        penstock.prepare(linked, tar_index_only=True, workers=1)
        assert not [one for one in penstock.verify(linked, depth="full") if one.code == "webdataset.links"]
    finally:
        (linked / ".nv-meta/away").unlink()


def test_leftovers_of_other_systems_are_no_samples(tmp_path: Path) -> None:
    junk = b"\0\5\x16\7"
    members: Members = [
        ("._a.jpg", junk), ("a.jpg", b"A"), ("a.txt", b"one"),
        ("d/._b.jpg", junk), ("d/b.jpg", b"B"), ("d/._b.txt", junk), ("d/b.txt", b"two"),
        (".DS_Store", junk), ("d/.DS_Store", junk), ("d/Thumbs.db", junk), ("desktop.ini", junk),
        ("__MACOSX/d/._b.jpg", junk), ("__MACOSX/._a.jpg", junk),
        ("c.jpg", b"C"), ("c.txt", b"three"),
    ]  # fmt: skip
    _pack(tmp_path / "s.tar", members)
    summary = penstock.prepare(tmp_path, split_ratio=[1, 0, 0], workers=1)
    assert summary.num_samples == 3
    assert any(one.startswith("9 leftovers") for one in summary.warnings)
    source = penstock.open(tmp_path, split="train", raw=True)
    assert [(one["__key__"], _parts(one)) for one in source] == [
        ("a", {"jpg": b"A", "txt": b"one"}),
        ("d/b", {"jpg": b"B", "txt": b"two"}),
        ("c", {"jpg": b"C", "txt": b"three"}),
    ]
