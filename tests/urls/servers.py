"""The servers of the cells, on this machine: S3 (moto), Azure (Azurite, where npm is), and the web."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path

from tests.moto_s3 import served

ROOT = Path(__file__).parent.parent.parent
AZURITE = "3.35.0"
_ACCOUNT = "devstoreaccount1"  # of the emulator, the same everywhere
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_PATIENCE_S = 60


@contextlib.contextmanager
def s3() -> Generator[str]:
    """URL of an S3 server with the bucket `bucket`, which the environment names."""
    with served() as url:
        os.environ["S3_ENDPOINT_URL"] = url
        yield url


@contextlib.contextmanager
def azure(folder: Path) -> Generator[bool]:
    """Whether an Azure emulator runs, with the container `container`, which the environment names then.

    Args:
        folder: of what it writes beside; it holds its blobs in memory.
    """
    program = _azurite()
    if program is None:
        yield False
        return
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    folder.mkdir(parents=True)
    words = [str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
    words += ["--skipApiVersionCheck", "--disableTelemetry"]
    running = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, running)
        url = f"http://127.0.0.1:{port}"
        _put(url, f"/{_ACCOUNT}/container?restype=container", _signed(), 201)
        os.environ |= {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": url}
        yield True
    finally:
        running.terminate()
        running.wait(_PATIENCE_S)


def _azurite() -> Path | None:
    """The emulator, installed beside the peers where npm is; None where it can't be."""
    folder = ROOT / ".venvs" / "azurite"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists() and shutil.which("npm") and shutil.which("node"):
        folder.mkdir(parents=True, exist_ok=True)
        words = ["npm", "install", "--silent", "--no-audit", "--no-fund", f"azurite@{AZURITE}"]
        (folder / "package.json").write_text("{}")
        subprocess.run(words, cwd=folder, timeout=600, check=False)
    return program if program.exists() else None


def _wait_for(port: int, running: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s and running.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError("the Azure emulator does not start")


def _signed() -> dict[str, str]:
    """Headers of the request that makes the container."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = "\n".join(f"{name}:{value}" for name, value in sorted(headers.items()))
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/container\nrestype:container"
    text = "PUT" + "\n" * 12 + f"{lines}\n{resource}"
    digest = hmac.new(base64.b64decode(_KEY), text.encode(), hashlib.sha256).digest()
    return headers | {"Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"}


def _put(url: str, path: str, headers: dict[str, str], expected: int) -> None:
    connection = HTTPConnection(url.removeprefix("http://"))
    connection.request("PUT", path, headers={"Content-Length": "0", **headers})
    answer = connection.getresponse()
    if answer.status != expected:
        raise RuntimeError(f"{url}{path}: {answer.status} {answer.read()[:300]!r}")
    connection.close()
