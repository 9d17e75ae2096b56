"""Ray: the laws of executors, one digest while nodes are killed, and what is refused before any work."""

from __future__ import annotations

import itertools
import json
import operator
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.internals import Place

import penstock
from penstock.abc import Executor
from penstock.errors import ConfigError, PrepareError
from penstock.executors import make_executor
from penstock.store import LocalStore
from penstock.testing import ClusterSuite, ExecutorSuite
from penstock.testing.cluster import write_tokenizer

from .conftest import RayCluster, listening

SRC = Path(penstock.__file__).parents[1]
TIMEOUT_S = 180


@pytest.fixture
def on_cluster(ray_cluster: RayCluster) -> Iterator[Executor]:
    with make_executor(f"ray:{ray_cluster.address}", None) as made:
        yield made


class TestLaws(ExecutorSuite):
    kills = sends = True

    @pytest.fixture
    def executor(self, on_cluster: Executor) -> Executor:
        return on_cluster

    def test_what_does_not_cross_is_an_error(self, executor: Executor) -> None:
        """Ray carries lambdas too; what can't be read on the other side is an error."""
        from penstock.testing.executors import Unreadable, give_unreadable

        for fn, tasks in ((give_unreadable, [1]), (id, [1, Unreadable(), 3])):
            with pytest.raises(PrepareError):
                list(executor.map(fn, tasks))  # type: ignore[arg-type]
        assert list(executor.map(operator.neg, [1, 2, 3])) == [-1, -2, -3]


class TestOneDigest(ClusterSuite):
    cluster: ClassVar[RayCluster]

    @pytest.fixture(scope="module")
    @classmethod
    def executor(cls, ray_cluster: RayCluster) -> Iterator[Executor]:
        cls.cluster = ray_cluster
        with make_executor(f"ray:{ray_cluster.address}", None) as made:
            yield made

    @pytest.fixture(scope="module")
    @classmethod
    def bucket(cls, bucket_url: str) -> str:
        return bucket_url

    def disturb(self) -> None:
        self.cluster.replace_a_node()


def test_a_node_that_dies_in_the_middle_of_its_tasks(ray_cluster: RayCluster, on_cluster: Executor) -> None:
    results = iter(on_cluster.map(time.sleep, [0.0] * 3 + [2.0] * 6))
    for _ in range(3):
        next(results)
    ray_cluster.replace_a_node()
    assert list(results) == [None] * 6


def test_all_listen_to_this_machine_alone(on_cluster: Executor) -> None:
    assert listening() <= {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}


def test_a_map_in_a_task_of_the_same_cluster(on_cluster: Executor) -> None:
    assert list(on_cluster.map(nested, [2, 3])) == [[0, -1], [0, -1, -2]]


def nested(count: int) -> list[int]:
    with make_executor("ray", None) as executor:
        return list(executor.map(operator.neg, range(count)))


# --- what is refused -----------------------------------------------------------------------------------------------


def test_a_worker_of_another_version(on_cluster: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.executors import on_ray

    monkeypatch.setattr(on_ray, "__version__", "0.0.1")
    with pytest.raises(ConfigError, match=r"a different version of Penstock: found .*, expected 0\.0\.1"):
        list(on_cluster.map(operator.neg, [1]))
    with pytest.raises(ConfigError, match=r"node .* can't run this job: found Penstock .* instead of 0\.0\.1"):
        make_executor("ray", None).__enter__()


def test_paths_that_a_worker_does_not_see(on_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.executors import on_ray, seen

    (tmp_path / "a.jsonl").write_text("{}\n")
    place = Place(LocalStore(), str(tmp_path / "a.jsonl"))
    output = Place(LocalStore(), str(tmp_path / "folder" / "out.pbin"))
    on_cluster.require_seen([place], [output])
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["a.jsonl"]

    @seen.contextlib.contextmanager
    def put_elsewhere(reads: Any, writes: Any) -> Iterator[Any]:
        yield [seen.Seen(str(tmp_path / "a.jsonl"), 99, "another")]

    monkeypatch.setattr(on_ray, "to_be_seen", put_elsewhere)
    with pytest.raises(ConfigError, match=r"it has a different .*a\.jsonl: 3 bytes instead of 99"):
        on_cluster.require_seen([place], [])

    @seen.contextlib.contextmanager
    def nowhere(reads: Any, writes: Any) -> Iterator[Any]:
        yield [seen.Seen(str(tmp_path / "gone"), 1, "")]

    monkeypatch.setattr(on_ray, "to_be_seen", nowhere)
    with pytest.raises(ConfigError, match=r"it can't access .*gone"):
        on_cluster.require_seen([place], [])


def test_a_node_that_joins_later_and_sees_something_else(ray_cluster: RayCluster, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    with make_executor(
        f"ray:{ray_cluster.address}", None, reads=[Place(LocalStore(), str(path))], writes=[]
    ) as executor:
        path.write_text("")
        assert list(executor.map(operator.neg, [1, 2, 3])) == [-1, -2, -3]
        ray_cluster.replace_a_node()
        with pytest.raises(
            ConfigError, match=r"node .* can't run this job: found it has a different .*a\.jsonl: 0 bytes"
        ):
            list(executor.map(time.sleep, [0.5] * 60))
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_addresses_that_can_not_be(ray_settings: None) -> None:
    code = (
        "import sys\n"
        "from penstock.errors import ConfigError\n"
        "from penstock.executors import make_executor\n"
        "try:\n"
        "    make_executor(sys.argv[1], 2).__enter__()\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    for name, said in (
        ("ray:127.0.0.1:1", "no Ray cluster to join"),
        ("ray:nowhere", "no Ray cluster to join"),
        ("ray:ray://127.0.0.1:10001", "aren't supported"),
    ):
        lines = python("-c", code, name).stdout.splitlines()
        assert len(lines) == 1
        assert said in lines[0]


# --- a cluster of its own ------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> tuple[Path, Path]:
    """Input and a tokenizer."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {number} " * 9}) + "\n" for number in range(3000)))
    return path, write_tokenizer(tmp_path / "tokenizer.json")


def test_ray_alone_starts_and_ends_its_own(lines: tuple[Path, Path], tmp_path: Path) -> None:
    inputs, tokenizer = lines
    made = []
    for executor, workers in (("ray", ["--workers", "2"]), ("inline", [])):
        output = tmp_path / f"{executor}.pbin"
        command = ["-m", "penstock", "pack", str(inputs), "-o", str(output), "--tokenizer", str(tokenizer)]
        done = python(*command, "--eos", "<|eod|>", "--executor", executor, *workers, "--json", env=no_cluster())
        json.loads(done.stdout)
        assert done.stderr == ""
        made.append(output.read_bytes())
    assert made[0] == made[1]


def test_a_killed_or_interrupted_caller_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from penstock.executors import make_executor\n"
        "with make_executor('ray', 2) as executor:\n"
        "    list(executor.map(abs, [-1]))\n"
        "    print('ready', flush=True)\n"
        "    list(executor.map(time.sleep, [300] * 4))\n"
    )
    folders: list[str] = []
    for number, status in ((signal.SIGKILL, -9), (signal.SIGINT, -2), (signal.SIGTERM, -15)):
        folders.append(tempfile.mkdtemp(prefix="p-", dir="/tmp"))
        env = no_cluster() | {"TMPDIR": folders[-1]}
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
        ) as one:
            assert one.stdout is not None
            assert one.stdout.readline() == b"ready\n"
            time.sleep(1)
            one.send_signal(number)
            one.communicate(timeout=60)
            assert one.returncode in (status, 130), one.returncode
    stop = time.monotonic() + 110  # less than the tasks take
    while (left := list(itertools.chain(*map(processes_with, folders)))) and time.monotonic() < stop:
        time.sleep(0.2)
    assert left == []
    subprocess.run(["rm", "-rf", *folders], check=True)


def no_cluster() -> dict[str, str]:
    """An environment in which nothing names a cluster."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "local",
    }


def processes_with(folder: str) -> list[int]:
    """Processes whose command line or environment names a folder."""
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            told = Path(f"/proc/{name}/cmdline").read_bytes() + Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if folder.encode() in told and int(name) != os.getpid():
            found.append(int(name))
    return found


def python(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done
