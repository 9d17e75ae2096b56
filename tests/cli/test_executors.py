"""`--executor` and `--workers` on every verb that works on data, honoured or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.called import called

WITH_TASKS = ("pack", "convert", "prepare", "prepare-media", "index", "verify")
ROWS = {"filter": ["--where", "n > 1"], "merge": [], "shuffle": ["--seed", "1"], "split": ["--ratio", "1,1"]}


def run(*arguments: str) -> tuple[int, str]:
    done = called(*arguments)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"n": number}) + "\n" for number in range(5)))
    return path


@pytest.mark.parametrize("verb", [*WITH_TASKS, *ROWS])
def test_every_verb_has_both(verb: str) -> None:
    status, said = run(verb, "--help")
    assert status == 0
    assert "--executor" in said
    assert "--workers" in said


@pytest.mark.parametrize("verb", ROWS)
def test_verbs_on_rows_honour_or_refuse(verb: str, lines: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "out.jsonl" if verb != "split" else tmp_path / "out")
    given = [verb, str(lines), "-o", output, *ROWS[verb]]
    status, said = run(*given, "--executor", "rays")
    assert status == 10  # a ConfigError
    assert "unknown executor" in said
    assert not Path(output).is_file()
    status, said = run(*given, "--workers", "2", "--executor", "inline")
    assert status == 10
    assert "inline runs one task at a time: found workers=2. Omit --workers" in said
    assert not Path(output).is_file()
    status, said = run(*given, "--workers", "1", "--executor", "inline")
    assert status == 0, said


def test_an_index_over_shards_has_nothing_to_copy(lines: Path, tmp_path: Path) -> None:
    status, said = run("merge", str(lines), "-o", str(tmp_path / "out"), "--no-copy", "--workers", "2")
    assert status == 10  # a ConfigError
    assert "no_copy only writes an index and copies no data" in said


def test_an_index_by_an_executor(lines: Path, tmp_path: Path) -> None:
    made: list[bytes] = []
    for executor, workers in (("inline", "1"), ("processes", "2")):
        output = tmp_path / executor
        how = ("--executor", executor, "--workers", workers)
        status, said = run("index", str(lines), "--index-path", str(output), *how)
        assert status == 0, said
        made.append(output.read_bytes())
    assert made[0] == made[1]
    status, said = run("index", str(lines), "--executor", "rays")
    assert status == 10  # a ConfigError
    assert "unknown executor" in said
    status, said = run("index", str(lines), "--executor", "rays", "--flavor", "energon")
    assert status == 10  # a ConfigError
    assert "in a single process" in said
    for more, why in (
        (("--workers", "2"), "Several files are indexed in parallel"),
        (("--no-validate",), "each line"),
    ):
        for verb in ("index", "prepare") if more[0] == "--workers" else ("index",):
            flavor = ("--flavor", "energon") if verb == "index" else ()
            status, said = run(verb, str(lines), *flavor, *more)
            assert (status, why in said) == (10, True), said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "inline", "processes"]
