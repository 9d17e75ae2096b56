"""`penstock index` as a user meets it."""

from __future__ import annotations

import functools
import json
import pickle
from pathlib import Path

import pytest
from tests.cli.called import called

run = functools.partial(called, "index")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\nfaulty\n{"n": 3}\n')
    return path


def test_a_faulty_line_is_refused_by_name(path: Path) -> None:
    done = run(path)
    assert done.returncode == 6
    assert done.stdout == ""
    assert f"{path}: line 2 is not valid JSON at byte 9" in done.stderr
    assert "faulty\n" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not path.with_suffix(".idx").exists()


def test_skipped_lines_are_named(path: Path) -> None:
    done = run(path, "--on-error", "skip")
    assert done.returncode == 0
    assert "2 lines" in done.stdout
    assert "1 invalid line skipped" in done.stdout
    assert "line 2 at byte 9" in done.stderr
    assert path.with_suffix(".idx").read_bytes() == pickle.dumps([(0, 8), (16, 8)], 4)


def test_one_json_document(path: Path) -> None:
    done = run(path, "--on-error", "skip", "--json")
    found = json.loads(done.stdout)
    assert found["index_path"] == str(path.with_suffix(".idx"))
    assert (found["num_lines"], found["num_dropped"]) == (2, 1)
    assert [(one["line"], one["offset_bytes"]) for one in found["dropped"]] == [(2, 9)]
    assert done.stderr == ""


def test_all_options(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.idx"
    options = ["--no-validate", "--index-path", target, "--workers", 2, "--flavor", "modalities"]
    assert run(path, *options).returncode == 0
    assert pickle.loads(target.read_bytes()) == [(0, 8), (9, 6), (16, 8)]
    assert run(path, *options).returncode == 10
    assert run(path, *options, "--overwrite").returncode == 0


def test_no_such_flavor_and_no_such_file(path: Path, tmp_path: Path) -> None:
    assert run(path, "--flavor", "nosuch").returncode == 10
    assert run(tmp_path / "none.jsonl").returncode == 9
