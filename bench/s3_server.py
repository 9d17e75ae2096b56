"""Local S3 server (moto) in a separate process that counts requests and bytes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness import PYTHON

BUCKET = "bench"
_COUNTS = "/_counts"


class S3Server:
    """Address and request counts of the server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {
            "S3_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def counts(self) -> dict[str, int]:
        """Return requests and bytes sent since the last call."""
        with urllib.request.urlopen(self.url + _COUNTS) as answer:
            return json.loads(answer.read())


@contextlib.contextmanager
def serving(folders: Mapping[str, Path]) -> Iterator[S3Server]:
    """Serve the files of each folder as `s3://bench/<name>/…`."""
    given = json.dumps({name: str(path) for name, path in folders.items()})
    process = subprocess.Popen([str(PYTHON), __file__, given], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the server has no output")
        yield S3Server(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()


class _Counting:
    """WSGI wrapper that counts requests and bytes sent."""

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._counts = {"requests": 0, "sent_bytes": 0}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _COUNTS:
            with self._lock:
                body = json.dumps(self._counts).encode()
                self._counts = {"requests": 0, "sent_bytes": 0}
            start_response("200 OK", [("Content-Length", str(len(body)))])
            return [body]
        parts = list(self._app(environ, start_response))
        with self._lock:
            self._counts["requests"] += 1
            if environ["REQUEST_METHOD"] == "GET":
                self._counts["sent_bytes"] += sum(map(len, parts))
        return parts


def _serve(folders: Mapping[str, str]) -> None:
    import logging

    import boto3
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = _Counting(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    client: Any = boto3.client("s3", endpoint_url=url, **keys)
    client.create_bucket(Bucket=BUCKET)
    for name, folder in folders.items():
        for path in Path(folder).iterdir():
            client.put_object(Bucket=BUCKET, Key=f"{name}/{path.name}", Body=path.read_bytes())
    print(url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    import sys

    _serve(json.loads(sys.argv[1]))
