"""The job arrays of the guide: a runner sets the variables, kills a part, and resubmits exactly what is missing."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.internals import CLI_MODULE, code_of, code_to_set, main, replace
from tests.prepare.conftest import EOS, TEXTS, write_lines

import penstock as ps
from penstock.testing.datasets import files_in

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "clusters.md"
SHARES = 4
Run = Callable[..., tuple[int, str]]


def commands() -> dict[str, tuple[str, list[str]]]:
    """Scheduler and verb → the variable that says which share, and the command of the guide."""
    text = GUIDE.read_text()
    scripts = re.findall(r"```bash\n#!/bin/bash\n#SBATCH.*?\n(penstock .*?)\n```", text, re.DOTALL)
    [job] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    container = yaml.safe_load(job)["spec"]["template"]["spec"]["containers"][0]
    found = {f"slurm {words[1]}": ("SLURM_ARRAY_TASK_ID", words) for words in map(shlex.split, scripts)}
    return found | {"kubernetes pack": ("JOB_COMPLETION_INDEX", container["command"])}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(variable: str, index: int | None, command: list[str]) -> tuple[int, str]:
        with monkeypatch.context() as patched:
            if index is not None:
                patched.setenv(variable, str(index))
            with pytest.raises(SystemExit) as ended:
                main(command[1:])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return call


@pytest.mark.parametrize("which", ["slurm pack", "kubernetes pack", "slurm convert"])
def test_an_array(which: str, tmp_path: Path, bpe2: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    variable, command = commands()[which]
    replace(monkeypatch, "default_task_bytes", lambda total_bytes: 4000)
    (tmp_path / "corpus").mkdir()
    write_lines(tmp_path / "corpus/a.jsonl", ({"text": f"{n} {TEXTS[n % 150]}"} for n in range(600)))
    here = {"auto/64": f"auto/{SHARES}", "<|endoftext|>": EOS, "tokenizer.json": str(bpe2 / "tokenizer.json")}
    here |= dict.fromkeys(("/data/corpus", "/data/corpus/"), f"{tmp_path}/corpus")
    here |= dict.fromkeys(("/data/tokens/", "s3://bucket/tokens/", "s3://bucket/images"), f"{tmp_path}/out/")
    here |= {"/data/images.jsonl": f"{tmp_path}/corpus/a.jsonl", "10000": "50"}
    mine = [here.get(word, word) for word in command]
    if "--workers" in mine:
        del mine[mine.index("--workers") : mine.index("--workers") + 2]
    mine += ["--executor", "inline"]
    if "pack" in which:
        mine += ["--file-tokens", "9000", *(() if "--eos" in mine else ("--eos", EOS))]
    finish = [*mine[: mine.index("--part")], *mine[mine.index("--part") + 2 :], "--finish", "--no-work"]

    killed = subprocess.Popen(
        [sys.executable, "-c", SLOW, *mine[1:]], env={**os.environ, variable: "2"}, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("**/parts/*/*.part")) and time.monotonic() < until:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    for index in (0, 1, 3, 3):
        assert run(variable, index, mine)[0] == 0
    for _ in range(2 if "pack" in which else 1):  # the parts, then the token files
        status, said = run(variable, None, finish)
        assert status == 14
        for index in shares_of(said):
            assert run(variable, index, mine)[0] == 0
    assert run(variable, None, finish)[0] == 0

    whole = [word for word in finish if word not in ("--finish", "--no-work")]
    whole[whole.index(f"{tmp_path}/out/")] = f"{tmp_path}/whole/"
    assert run(variable, None, whole)[0] == 0
    assert files_in(tmp_path / "out") == files_in(tmp_path / "whole")
    assert len(ps.open(tmp_path / "out")) == 600


SLOW = f"""
import sys, time
{code_to_set("default_task_bytes", "lambda total_bytes: 4000")}
def slow(make):
    def made(job, task):
        result = make(job, task)
        time.sleep(0.3)
        return result
    return made
{code_to_set("encode_task", f"slow({code_of('encode_task')})")}
{code_to_set("write_group", f"slow({code_of('write_group')})")}
from {CLI_MODULE} import main
main(sys.argv[1:])
"""


def shares_of(said: str) -> list[int]:
    """The indices of `--array=3,17,90-95`."""
    [found] = re.findall(r"--array=([\d,-]+)", said)
    shares: list[int] = []
    for run in found.split(","):
        first, _, last = run.partition("-")
        shares += range(int(first), int(last or first) + 1)
    return shares


def test_the_job_of_ray(tmp_path: Path, bpe2: Path, run: Run) -> None:
    """The command that `ray job submit` runs on a cluster, by another executor: it is whole, and begins nothing odd."""
    [line] = re.findall(r"^ray job submit .* -- (penstock .*)$", GUIDE.read_text(), re.MULTILINE)
    (tmp_path / "corpus").mkdir()
    write_lines(tmp_path / "corpus/a.jsonl", ({"text": one} for one in TEXTS[:20]))
    here = {"tokenizer.json": str(bpe2 / "tokenizer.json"), "<|endoftext|>": EOS, "ray": "inline"}
    here |= {"/data/corpus": f"{tmp_path}/corpus", "/data/tokens/": f"{tmp_path}/out/"}
    words = [here.get(word, word) for word in shlex.split(line)]
    assert run("", None, words)[0] == 0
    assert len(ps.open(tmp_path / "out")) == 20
    assert run("", None, words)[0] == 0  # the same job again


class Row(dict[str, object]):
    """What Spark gives: a row that can be had as a dict."""

    def asDict(self) -> dict[str, object]:
        return dict(self)


def test_the_partitions_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a data frame runs the guide's blocks: one partition dies half-way, one runs twice."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    partitions = [[Row(id=10 * part + row, text="a" * row) for row in range(10)] for part in range(3)]

    class Frame:
        @property
        def rdd(self) -> Frame:
            return self

        def mapPartitionsWithIndex(self, write: Callable[..., object]) -> Frame:
            with pytest.raises(RuntimeError, match="killed"):
                list(write(1, dying(partitions[1])))  # type: ignore[call-overload]
            for index in (2, 0, 1, 2):
                assert len(list(write(index, partitions[index]))) == 1  # type: ignore[call-overload]
            return self

        def collect(self) -> None: ...

    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"df": Frame()}
    for block in blocks:
        exec(block, names)  # the page's names are shared
    assert [row["id"] for row in ps.open("shards")] == list(range(30))


def dying(rows: list[Row]) -> Iterator[Row]:
    """Half of the rows, and then no more."""
    yield from rows[:5]
    raise RuntimeError("killed")
