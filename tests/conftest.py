"""What all tests share: a cache folder of their own, and the golden files."""

from __future__ import annotations

import functools
import gc
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import sys
import typing
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.blackbox import MARKER, is_black_box
from tests.internals import LOADER_MODULES

settings.register_profile("penstock", deadline=None)  # a timing is never a test
settings.load_profile("penstock")

GOLDEN = Path(__file__).parent / "golden"

_SETTINGS = (Path(__file__).parent / "telemetry_off.env").read_text().splitlines()
os.environ.update(line.split("=", 1) for line in _SETTINGS if not line.startswith("#"))

# Processes of tests import the same modules a thousand times: they are compiled once, whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Shells start what runs in the background so that it ignores interrupts, and the processes of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = "/dev/shm"
MEMORY_BYTES = 4 << 30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)  # thousands of commits wait for the disk otherwise

# Worker processes of loaders share what their server has imported: each would import it again.
multiprocessing.set_forkserver_preload([*LOADER_MODULES, "penstock.testing.memory"])


# Python 3.11 lists a protocol's members for each isinstance: a tenth of a test's time. Later versions list them once.
if sys.version_info < (3, 12):
    for _name in ("_get_protocol_attrs", "_is_callable_members_only"):
        setattr(typing, _name, functools.cache(getattr(typing, _name)))


gc.disable()  # what is imported and collected stays: until the tests run there is no garbage worth a look


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without black-box tests if only those run: the present source may lack what the others import."""
    only = config.option.markexpr == MARKER and collection_path.suffix == ".py"
    return True if only and not is_black_box(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the black-box tests."""
    for item in items:
        if is_black_box(item.path):
            item.add_marker(MARKER)


def pytest_collection_finish() -> None:
    """All tests are there for good: no collection of garbage looks at them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape lone surrogates: they can't be sent from a worker of xdist, and one failure would end the whole run."""
    return _sendable((yield))


def _sendable(data: Any) -> Any:
    """Return `data` with lone surrogates in its texts escaped."""
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {_sendable(name): _sendable(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(map(_sendable, data))
    return data


_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the test's own, gone when it passes. For a free name pytest's looks at those of all other tests."""
    before = request.session.testsfailed
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    path.mkdir(0o700)
    yield path
    if request.session.testsfailed == before:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's cache; child processes inherit the setting."""
    folder = tmp_path_factory.mktemp("penstock-cache")
    before = os.environ.get("PENSTOCK_CACHE")
    os.environ["PENSTOCK_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["PENSTOCK_CACHE"]
    else:
        os.environ["PENSTOCK_CACHE"] = before


# Whatever a client asks of another machine goes to a port that nobody listens on, and fails at once.
_NOWHERE = "http://127.0.0.1:9"
_OFFLINE = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), _NOWHERE),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
    "AWS_ENDPOINT_URL": _NOWHERE,
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_CONFIG_FILE": os.devnull,
}


@pytest.fixture(scope="session", autouse=True)
def offline() -> Iterator[None]:
    """No test reaches a host but this one, nor uses anybody's keys; child processes inherit the settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _OFFLINE.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def golden() -> Path:
    """Files that the original tools made; see the README in each folder. Read only."""
    return GOLDEN


@pytest.fixture(scope="session")
def s3_server(offline: None) -> Iterator[str]:
    """URL of an S3 server of this machine, which the environment names too; it has the bucket `bucket`."""
    from tests.moto_s3 import served

    with served() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("S3_ENDPOINT_URL", url)
        yield url


@pytest.fixture
def cli() -> Callable[..., tuple[int, str]]:
    """Runs the command line here; its status, and what it said."""
    from tests.cli.called import called

    def run(*arguments: str) -> tuple[int, str]:
        done = called(*arguments)
        return done.returncode, done.stdout + done.stderr

    return run
