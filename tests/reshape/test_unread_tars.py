"""Files next to the tar shards of a folder that was never prepared: read, refused or named, by every verb."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from tests.cli.called import called
from tests.internals import place_of, put

import penstock as ps
from penstock.errors import Unsupported

VERBS = {
    "merge": ("merge", "{root}", "-o", "{out}"),
    "shuffle": ("shuffle", "{root}", "-o", "{out}", "--seed", "1"),
    "split": ("split", "{root}", "-o", "{out}", "--ratio", "1,1"),
}
COMPRESSED = ["b.tar.gz", "b.tar.zst", "b.TAR.BZ2", "b.tgz", "b.TGZ", "below/b.tar.xz"]
IGNORED = ["b.TAR", "below/b.Tar", "b.tar.part", "b.tar.gz.tmp"]


def tar(*names: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    return file.getvalue()


def fill(root: str, name: str) -> None:
    for file, data in {"a.tar": tar("a1.txt", "a2.txt"), "a.tar.md5": b"x", name: tar("b1.txt")}.items():
        place = place_of(f"{root}/{file}")
        put(place.store, place.path, data)


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "local":
        (tmp_path / "in/below").mkdir(parents=True)
        return str(tmp_path / "in")
    request.getfixturevalue("s3_server")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return f"s3://bucket/unread-tars/{tmp_path.name}"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tars_are_refused(verb: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "in/below").mkdir(parents=True)
    fill(str(tmp_path / "in"), name)
    done = called(*(word.format(root=tmp_path / "in", out=tmp_path / "out") for word in VERBS[verb]))
    assert done.returncode == Unsupported.exit_status
    assert f"in/{name}: a compressed shard" in done.stderr
    assert "--exclude" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", IGNORED)
def test_ignored_tars_are_named(verb: str, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in/below").mkdir(parents=True)
    fill(str(tmp_path / "in"), name)
    done = called(*(word.format(root=tmp_path / "in", out=tmp_path / "out") for word in VERBS[verb]))
    assert done.returncode == 0, done.stderr
    assert len([message for message in caplog.messages if "ignored 1 " in message and f" {name}" in message]) == 1
    keys: list[str] = []
    for shard in (tmp_path / "out").rglob("*.tar"):
        with tarfile.open(shard) as archive:
            keys += archive.getnames()
    assert sorted(keys) == ["a1.txt", "a2.txt"]


def test_one_rule_for_objects_too(root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(root, "b.TAR")
    ps.merge([root], tmp_path / "out")
    assert sum(" b.TAR" in message for message in caplog.messages) == 1
    fill(root, "b.tar.gz")
    with pytest.raises(Unsupported, match=r"b\.tar\.gz: a compressed shard"):
        ps.merge([root], tmp_path / "other")


@pytest.mark.parametrize("name", [*COMPRESSED, *IGNORED])
def test_verify_of_a_prepared_folder_names_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.tar").write_bytes(tar("a1.txt", "a2.txt"))
    assert called("prepare", tmp_path, "--split-ratio", "1,0,0", "--non-interactive").returncode == 0
    fill(str(tmp_path), name)
    done = called("verify", tmp_path)
    assert "webdataset.unlisted-shard" in done.stdout
    assert f": {name}\n" in done.stdout
