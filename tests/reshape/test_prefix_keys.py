"""Tars with the same keys: an error that names both files, or keys with the name of the shard."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import called

import penstock
from penstock.errors import ConfigError

EXPECTED = {"a/s0/k.txt": b"a0", "a/s1/m.txt": b"a1", "b/s0/k.txt": b"b0", "b/s0/d/k.x.txt": b"b1"}


def _tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def _members(folder: Path) -> dict[str, bytes]:
    """All members of all tars in a folder, as tarfile reads them."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as file:
            for member in file.getmembers():
                content = file.extractfile(member)
                assert content is not None
                assert member.name not in found
                found[member.name] = content.read()
    return found


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    _tar(tmp_path / "a/s0.tar", {"k.txt": b"a0"})
    _tar(tmp_path / "a/s1.tar", {"m.txt": b"a1"})
    _tar(tmp_path / "b/s0.tar", {"k.txt": b"b0", "d/k.x.txt": b"b1"})
    return tmp_path


@pytest.mark.parametrize("more", [{}, {"dry_run": True}, {"workers": 2}])
def test_the_same_key_in_two_sources_is_an_error_that_names_both_files(tars: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        penstock.merge([tars / "a", tars / "b"], tars / "out", **more)
    assert error.value.found == f"first in {tars / 'a/s0.tar'}, again in {tars / 'b/s0.tar'}"
    assert "'k'" in str(error.value)
    assert "--prefix-keys" in str(error.value.hint)
    assert not (tars / "out").exists()


@pytest.mark.parametrize("more", [{}, {"workers": 2}])
def test_prefixes_make_keys_of_several_sources_differ(tars: Path, more: dict[str, Any]) -> None:
    report = penstock.merge([tars / "a", tars / "b"], tars / "out", prefix_keys=True, **more)
    assert report.output.samples == len(EXPECTED)
    assert _members(tars / "out") == EXPECTED


def test_shards_of_one_source_get_their_names_alone(tmp_path: Path) -> None:
    for name in ("s0", "deep/s1"):
        _tar(tmp_path / f"in/{name}.tar", {"k.txt": name.encode()})
    done = called("prepare", tmp_path / "in", "--split-ratio", "1,0,0")
    assert done.returncode != 0
    assert "--no-sqlite" in done.stderr
    assert "--prefix-keys" in done.stderr
    expected = {"s0/k.txt": b"s0", "deep/s1/k.txt": b"deep/s1"}
    assert called("merge", tmp_path / "in", "-o", tmp_path / "merged", "--prefix-keys").returncode == 0
    assert _members(tmp_path / "merged") == expected
    assert called("shuffle", tmp_path / "in", "-o", tmp_path / "mixed", "--seed", "1", "--prefix-keys").returncode == 0
    assert _members(tmp_path / "mixed") == expected
    assert called("split", tmp_path / "in", "-o", tmp_path / "parts", "--ratio", "1,1", "--prefix-keys").returncode == 0
    assert _members(tmp_path / "parts") == expected

    assert called("prepare", tmp_path / "in", "--split-ratio", "1,0,0", "--no-sqlite").returncode == 0
    done = called("convert", tmp_path / "in", tmp_path / "out", "--to", "webdataset")
    assert done.returncode == 10
    assert "'k'" in done.stderr
    assert "--prefix-keys" in done.stderr
    assert called("convert", tmp_path / "in", tmp_path / "out", "--to", "webdataset", "--prefix-keys").returncode == 0
    assert _members(tmp_path / "out") == expected
    with pytest.raises(ConfigError, match="prefix_keys"):
        penstock.convert(tmp_path / "out", tmp_path / "m", to="mds", format="mds", prefix_keys=True)
