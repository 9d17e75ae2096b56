"""The cache folder is shown, trimmed and cleared beside processes that use it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.main import main
from penstock.store.cache_room import cache_use, trim_cache
from penstock.store.derived import DerivedCache, write_record
from penstock.store.lock import hold_lock

KEYS = ("old", "middle", "new")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache with three computed files, used one after another, and two copies."""
    cache = DerivedCache(str(tmp_path))
    for age, key in enumerate(KEYS):
        cache.array(key, "<u1", lambda: np.zeros(1000, np.uint8))
        os.utime(tmp_path / "derived" / f"{key}.npy", (age + 1, age + 1))
    (tmp_path / "remote").mkdir()
    for name in ("a" * 32, "b" * 32):
        path = tmp_path / "remote" / f"{name}.copy"
        path.write_bytes(bytes(500))
        write_record(str(path), {}, "0")
    return tmp_path


def computed(root: Path) -> list[str]:
    return [key for key in KEYS if (root / "derived" / f"{key}.npy").exists()]


def test_the_least_recently_used_go_first(root: Path) -> None:
    use = {one.name: one for one in cache_use(str(root))}
    assert use["derived"].size_bytes > 3000
    assert use["remote"].size_bytes > 1000
    removed_bytes = trim_cache(3400, str(root))
    assert computed(root) == ["middle", "new"]
    assert removed_bytes > 1000
    assert trim_cache(3400, str(root)) == 0


def test_a_cleared_cache_is_filled_again_and_what_is_open_stays(root: Path) -> None:
    cache = DerivedCache(str(root))
    mapped = cache.array("new", "<u1", lambda: np.ones(1000, np.uint8))
    trim_cache(0, str(root))
    assert computed(root) == []
    assert list((root / "remote").glob("*.copy")) == []
    assert not mapped.any()
    assert cache.array("new", "<u1", lambda: np.ones(1000, np.uint8)).all()


def test_what_somebody_is_about_to_write_stays(root: Path) -> None:
    with hold_lock(str(root / "derived" / "old.npy.lock")):
        trim_cache(0, str(root))
        assert computed(root) == ["old"]


def test_the_command(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(root))

    def said(*options: str) -> dict[str, int]:
        with pytest.raises(SystemExit) as ended:
            main(["cache", "--json", *options])
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    before = said()
    assert before["removed_bytes"] == 0
    assert said("--trim", "3.4kB")["removed_bytes"] > 1000
    assert computed(root) == ["middle", "new"]
    assert said("--clear")["size_bytes"] < before["size_bytes"] // 2
    assert computed(root) == []
    for options in (["--trim", "much"], ["--trim", "1", "--clear"]):
        with pytest.raises(SystemExit) as ended:
            main(["cache", *options])
        assert ended.value.code in (2, 10)
