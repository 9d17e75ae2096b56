"""Where a cell's data lie: a folder of this machine, a bucket of an S3 server, a container, a web server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from penstock.testing import FileServer


class Where(Protocol):
    """A place for files by relative paths, apart from Penstock's own stores."""

    kind: str

    def url(self, name: str) -> str:
        """What a user writes for a folder `name`."""
        ...

    def put(self, name: str, files: dict[str, bytes]) -> None:
        """Put files into a folder `name`."""
        ...

    def files(self, name: str) -> dict[str, bytes]:
        """All that is in a folder `name`, hidden files too."""
        ...


class Local:
    """Folders under `root`."""

    kind = "local"

    def __init__(self, root: Path) -> None:
        self._root = root

    def url(self, name: str) -> str:
        return str(self._root / name)

    def put(self, name: str, files: dict[str, bytes]) -> None:
        for path, data in files.items():
            whole = self._root / name / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            whole.write_bytes(data)

    def files(self, name: str) -> dict[str, bytes]:
        root = self._root / name
        found = [Path(parent, one) for parent, _, names in os.walk(root) for one in names]
        return {str(path.relative_to(root)): path.read_bytes() for path in found}


class Objects:
    """A bucket or container, reached by obstore itself."""

    def __init__(self, kind: str, base: str, store: Any) -> None:
        self.kind = kind
        self._base = base
        self._store = store

    def url(self, name: str) -> str:
        return f"{self._base}/{name}"

    def put(self, name: str, files: dict[str, bytes]) -> None:
        for path, data in files.items():
            self._store.put(f"{name}/{path}", data)

    def files(self, name: str) -> dict[str, bytes]:
        keys = [one["path"] for page in self._store.list(f"{name}/") for one in page]
        return {key[len(name) + 1 :]: bytes(self._store.get(key).bytes()) for key in keys}


class Web:
    """A web server, which is only read."""

    kind = "http"

    def __init__(self, server: FileServer) -> None:
        self._server = server

    def url(self, name: str) -> str:
        return f"{self._server.url}/{quote(name)}"

    def put(self, name: str, files: dict[str, bytes]) -> None:
        self._server.files.update({f"{name}/{path}": data for path, data in files.items()})

    def files(self, name: str) -> dict[str, bytes]:
        return {path[len(name) + 1 :]: data for path, data in self._server.files.items() if path.startswith(f"{name}/")}


def s3_place(endpoint: str) -> Objects:
    """The bucket `bucket` of an S3 server of this machine."""
    from obstore.store import S3Store

    options: dict[str, Any] = {"client_options": {"allow_http": True}}
    return Objects("s3", "s3://bucket", S3Store("bucket", endpoint=endpoint, **options))


def az_place() -> Objects:
    """The container `container` of the emulator that the environment names."""
    from obstore.store import AzureStore

    return Objects("az", "az://container", AzureStore("container", client_options={"allow_http": True}))
