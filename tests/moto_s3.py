"""An S3 server of this machine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from http.client import HTTPConnection

BUCKET = "bucket"
_SCOPE = "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=b"


@contextlib.contextmanager
def served() -> Generator[str]:
    """Its URL; it has the bucket `BUCKET`."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import WSGIRequestHandler

    # For each request it looks for the service of a host in its own folder, then by hundreds of patterns.
    with_memory = functools.cache(DomainDispatcherApplication.get_backend_for_host)
    DomainDispatcherApplication.get_backend_for_host = with_memory  # type: ignore[method-assign]
    # Nobody reads the log of requests, which costs a tenth of each.
    WSGIRequestHandler.log_request = lambda *_: None  # type: ignore[method-assign]
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        address = "{}:{}".format(*server.get_host_and_port())
        with contextlib.closing(HTTPConnection(address)) as connection:
            connection.request("PUT", f"/{BUCKET}", headers={"Authorization": _SCOPE, "Content-Length": "0"})
            if (status := connection.getresponse().status) != 200:
                raise RuntimeError(f"no bucket is made: {status}")
        yield f"http://{address}"
    finally:
        server.stop()
