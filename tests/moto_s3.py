"""An S3 server of this machine."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Generator
from http.client import HTTPConnection
from typing import Any

BUCKET = "bucket"
_SCOPE = "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=b"


@contextlib.contextmanager
def served() -> Generator[str]:
    """Its URL; it has the bucket `BUCKET`."""
    from moto.core import serialize
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import WSGIRequestHandler

    # For each request it looks for the service of a host in its own folder, then by hundreds of patterns.
    with_memory = functools.cache(DomainDispatcherApplication.get_backend_for_host)
    DomainDispatcherApplication.get_backend_for_host = with_memory  # type: ignore[method-assign]
    # Nobody reads the log of requests, which costs a tenth of each.
    WSGIRequestHandler.log_request = lambda *_: None  # type: ignore[method-assign]
    # For each key of a listing it parses its own time stamp, and makes up other names for fields that are there.
    serialize.parse_to_aware_datetime = functools.lru_cache(1 << 12)(serialize.parse_to_aware_datetime)
    serialize.AttributePicker.__call__ = _pick_or(serialize.AttributePicker.__call__)  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # nobody reads a line for each request
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


def _pick_or(pick: Any) -> Any:
    def picked(picker: Any, context: Any) -> Any:
        if type(context.obj) is dict and not picker.response_transformers:
            value = context.obj.get(context.key)
            if value is not None:
                return value
        return pick(picker, context)

    return picked
