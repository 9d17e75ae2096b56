"""What every node must see before the work begins, and what Ray is asked for where it is not there."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from penstock import __version__
from penstock.errors import ConfigError, MissingExtra
from penstock.executors import make_executor, on_ray
from penstock.executors.seen import looked_at, to_be_seen
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from penstock.store.names import is_staged_name
from penstock.store.place import Place


def at(path: Path) -> Place:
    return Place(LocalStore(), str(path))


def test_the_same_files_are_seen(tmp_path: Path) -> None:
    (tmp_path / "data" / "b").mkdir(parents=True)
    (tmp_path / "data" / "b" / "shard").write_bytes(b"x" * 9000)
    (tmp_path / "a.jsonl").write_text("{}\n")
    with to_be_seen([at(tmp_path / "a.jsonl"), at(tmp_path / "data")], [at(tmp_path / "new" / "out.pbin")]) as seen:
        assert [Path(one.path).name for one in seen[:2]] == ["a.jsonl", "shard"]
        assert Path(seen[2].path).parent == tmp_path
        assert [looked_at(one) for one in seen] == [None, None, None]
        (tmp_path / "a.jsonl").write_text("[]\n")
        assert "it has a different" in str(looked_at(seen[0]))
        os.remove(tmp_path / "data" / "b" / "shard")
        assert "it can't access" in str(looked_at(seen[1]))
        assert is_staged_name(Path(seen[2].path).name), "what a killed run leaves goes with the next one"
    assert "it can't access" in str(looked_at(seen[2]))
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "data"]


def test_what_is_elsewhere_or_many_is_not_looked_at_one_by_one(tmp_path: Path) -> None:
    files = [tmp_path / f"{number:04}" for number in range(1000)]
    for file in files:
        file.touch()
    with to_be_seen([*map(at, files), Place(MemoryStore(), "a")], []) as seen:
        assert len(seen) <= 16
        assert seen[0].path == str(files[0])


def test_a_node_that_joins_later_is_looked_at_by_its_first_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in on_ray._ONE_THREAD:
        monkeypatch.setenv(name, "1")
    monkeypatch.chdir(tmp_path)
    inputs = tmp_path / "a.jsonl"
    inputs.write_text("{}\n")

    def first_task(node: str) -> object:
        on_ray._late_look.cache_clear()
        monkeypatch.setattr(on_ray, "_here", lambda: (node, "late (10.0.0.9)"))
        result, error = on_ray.run_task(abs, -1, __version__, str(tmp_path), before)
        return result if error is None else str(error)

    with to_be_seen([at(inputs)], [at(tmp_path / "out.pbin")]) as seen:
        before = on_ray.LookedAt(tuple(seen), frozenset({"first"}))
        assert first_task("second") == 1
        inputs.write_text("")
        assert on_ray.run_task(abs, -2, __version__, str(tmp_path), before) == (2, None), "once a process"
        refused = str(first_task("second"))
        assert "the Ray node late (10.0.0.9) can't run this job: found it has a different" in refused
        assert "a.jsonl: 0 bytes instead of 3" in refused
        assert first_task("first") == 1, "a node that was looked at before the work"
        inputs.write_text("{}\n")
    assert "it can't access" in str(first_task("second")), "where the output's folder is another one"


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
@pytest.mark.parametrize("name", ["ray", "ray:127.0.0.1:6379"])
def test_without_ray_its_extra_is_named(name: str) -> None:
    with pytest.raises(MissingExtra, match="extra 'ray' with: pip install 'ray<"):
        make_executor(name, 2).__enter__()


def test_rays_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Ray clients \(ray://\) aren't supported.*ray job submit"):
        make_executor("ray:ray://127.0.0.1:10001", 2).__enter__()
