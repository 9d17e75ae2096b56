"""What all tests share: a cache folder of their own, and the golden files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from hypothesis import settings

from penstock.cli.main import main

settings.register_profile("penstock", deadline=None)  # a timing is never a test
settings.load_profile("penstock")

GOLDEN = Path(__file__).parent / "golden"

_SETTINGS = (Path(__file__).parent / "telemetry_off.env").read_text().splitlines()
os.environ.update(line.split("=", 1) for line in _SETTINGS if not line.startswith("#"))


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
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S3_ENDPOINT_URL", url)
        connection = HTTPConnection(url.removeprefix("http://"))
        scope = "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=b"
        connection.request("PUT", "/bucket", headers={"Authorization": scope})
        assert connection.getresponse().status == 200
        connection.close()
        yield url
    server.stop()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Runs the command line here; its status, and what it said."""

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run
