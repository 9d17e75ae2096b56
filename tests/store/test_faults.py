"""Faults between a writer and an S3 server: nothing is lost, nothing shows in part, and it ends with all bytes."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.store.between import Between, Fault, between

from penstock.errors import ConfigError, PenstockError, Unreachable
from penstock.store import _objects, _remote_output, compose
from penstock.store.place import Place, place_of
from penstock.store.put import put, put_new
from penstock.store.remote import RemoteStore

MIB = 1 << 20
FAULTS: tuple[Fault, ...] = ("cut", "unanswered", "500", "503", "expired")
DATA = random.Random(2).randbytes(5 * MIB // 4)
"""Larger than the limits that `s3` sets: uploaded and compared in two parts, as 20 MiB are by the usual limits."""


@pytest.fixture
def s3(s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """An S3 server behind a proxy."""
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_REMOTE_BACKOFF_S", "0.01")
    for module, name in (
        *((_objects, "_PART_BYTES"), (_objects, "_COMPARED_BYTES")),
        *((_remote_output, "ONE_PUT_BYTES"), (compose, "LEAST_PART_BYTES")),
    ):
        monkeypatch.setattr(module, name, MIB)
    monkeypatch.setattr(_remote_output, "_HASHED_BYTES", MIB // 4)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", MIB)
    with between(s3_server) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        yield proxy


@pytest.fixture
def root(s3: Between, tmp_path: Path) -> Place:
    place = place_of(f"s3://bucket/faults/{tmp_path.name}")
    store: Any = place.store
    return Place(RemoteStore(store.remote.base), place.path)


def names(root: Place) -> list[str]:
    """All objects, hidden ones too."""
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["S3_ENDPOINT_URL"])
    prefix = root.path.removeprefix("s3://bucket/") + "/"
    found = client.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    return [one["Key"].removeprefix(prefix) for one in found]


def stage(root: Place, data: bytes) -> None:
    staged = root.store.stage(root.child("out").path)
    staged.write(data)
    staged.commit()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("method", "words", "data"),
    [
        ("PUT", ("out",), DATA[:1000]),
        ("PUT", ("partNumber=2",), DATA),
        ("POST", ("uploadId",), DATA),
        ("POST", ("/out?uploadId",), DATA),
    ],
    ids=["small", "part", "complete", "copied"],
)
def test_an_upload(s3: Between, root: Place, method: str, words: tuple[str, ...], data: bytes, fault: Fault) -> None:
    met = s3.once(fault, method, *words)
    try:
        stage(root, data)
    except PenstockError:
        assert "out" not in names(root)
        stage(root, data)  # the same again ends well
    assert len(met) == 1
    assert root.store.get(root.child("out").path) == data
    assert names(root) == ["out"]


def test_an_upload_of_which_no_answer_is_heard(s3: Between, root: Place) -> None:
    """The store does what it is asked for, and the writer finds it there; but bytes of another one are not its own."""
    s3.fault = lambda method, path: "unanswered" if method == "POST" and "/out?uploadId" in path else ""
    stage(root, DATA)
    assert sum("/out?uploadId" in path for _, path, _ in s3.log) > 1
    assert names(root) == ["out"]
    assert root.store.get(root.child("out").path) == DATA
    with pytest.raises((ConfigError, Unreachable)):
        stage(root, DATA[:-1] + b"x")
    assert root.store.get(root.child("out").path) == DATA


@pytest.mark.parametrize("fault", ["unanswered", "503", "expired"])
@pytest.mark.parametrize(
    ("method", "words"),
    [("PUT", ("partNumber=2",)), ("PUT", ("partNumber=1",)), ("POST", ("uploadId",))],
    ids=["copy", "carried", "complete"],
)
def test_a_composition(
    s3: Between,
    root: Place,
    tmp_path: Path,
    method: str,
    words: tuple[str, ...],
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compose, "LEAST_PART_BYTES", 1 << 12)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1 << 12)
    put(root.store, root.child("a").path, DATA[: 1 << 14])
    (tmp_path / "head").write_bytes(b"head" * (1 << 11))
    here = str(tmp_path / "head")
    ranges = [(here, 0, 1 << 13), (root.child("a").path, 0, 1 << 14)]
    met = s3.once(fault, method, "made", *words)
    how = {"here": here, "scratch": str(tmp_path)}
    try:
        compose.join_ranges(root.store, ranges, root.child("made").path, **how)
    except PenstockError:
        assert "made" not in names(root)
        assert compose.join_ranges(root.store, ranges, root.child("made").path, **how)
    assert len(met) == 1
    assert root.store.get(root.child("made").path) == b"head" * (1 << 11) + DATA[: 1 << 14]
    assert names(root) == ["a", "made"]
    assert not compose.join_ranges(root.store, ranges, root.child("made").path, **how)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_claim_by_a_conditional_put(s3: Between, root: Place, fault: Fault) -> None:
    s3.once(fault, "PUT", "plan")
    assert put_new(root.store, root.child("plan").path, b"mine")  # it was this writer's, whatever was heard of it
    assert not put_new(root.store, root.child("plan").path, b"other")
    assert root.store.get(root.child("plan").path) == b"mine"


def test_credentials_in_a_file_that_another_program_replaces(
    s3: Between, root: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    section = "[default]\naws_access_key_id = {}\naws_secret_access_key = b\n"
    file.write_text(section.format("OLD"))
    put(root.store, root.child("a").path, b"a")
    file.write_text(section.format("NEW"))
    keys: list[str] = []
    s3.look = lambda headers: keys.append(headers.get("Authorization", ""))
    s3.once("expired", "GET", "/a")
    assert root.store.get(root.child("a").path) == b"a"
    assert ["OLD" in key for key in keys] == [True, False]
    assert "NEW" in keys[-1]


CONFLICTING: dict[str, Callable[[Place], object]] = {
    "get": lambda place: place.store.get(place.path),
    "size": lambda place: place.store.size(place.path),
    "exists": lambda place: place.store.exists(place.path),
    "list": lambda place: list(place.store.list(place.path)),
}


@pytest.mark.parametrize("method", CONFLICTING)
def test_a_conflict_that_answers_a_read(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some stores answer 409 to GET and HEAD, for objects in an archive."""

    class Conflict(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(409)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_REMOTE_BACKOFF_S", "0.01")
    with ThreadingHTTPServer(("127.0.0.1", 0), Conflict) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            monkeypatch.setenv("S3_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
            place = place_of("s3://conflict/a/b")
            with pytest.raises(Unreachable) as raised:
                CONFLICTING[method](place)
        finally:
            server.shutdown()
            thread.join()
    assert raised.value.exit_status == 15
