"""Paths in YAML files: relative to the file, with the schemes of Energon."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from penstock.errors import ConfigError

_SCHEME = re.compile(r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)$", re.DOTALL)
_FOLDER = "filesystem"


def beside(file: str, path: str) -> str:
    """Return the path or URL that `path` in `file` means.

    Raises:
        ConfigError: the scheme requires a missing setting.
    """
    found = _SCHEME.match(path)
    if found is None:
        return _join(file, path)
    scheme, rest = found["scheme"].lower(), found["rest"]
    if scheme == "file":
        return unquote(rest) if rest.startswith("/") else _join(file, unquote(rest))
    if scheme == "dss":
        return _cached(path, rest)
    if scheme == "msc" and rest.partition("/")[0] == "default":
        # The profile of that name is the local file system.
        return "/" + rest.partition("/")[2]
    return path


def aux_place(file: str, path: str) -> tuple[str, bool]:
    """Return the meaning of an auxiliary path in `file`, and whether it is a directory of files.

    `filesystem://P` and `filesystem+<scheme>://…` are directories; everything else is a prepared dataset.

    Raises:
        ConfigError: a URL follows `filesystem://`, or the scheme requires a missing setting.
    """
    found = _SCHEME.match(path)
    if found is None:
        return beside(file, path), False
    scheme, rest = found["scheme"], found["rest"]
    first, plus, other = scheme.lower().partition("+")
    if first != _FOLDER:
        return beside(file, path), False
    inner = _SCHEME.match(rest) if not plus else None
    if (other or (inner["scheme"].lower() if inner else "")) in ("http", "https"):
        hint = "Copy the folder, or use a prepared dataset on the server"
        raise ConfigError("a web server can't list the files of a folder", path=file, found=path, hint=hint)
    if inner is not None:
        what = "filesystem:// needs a path, not a URL"
        raise ConfigError(what, path=file, found=path, expected=f"filesystem+{rest}")
    return (beside(file, f"{other}://{rest}") if plus else _join(file, rest)), True


def _join(file: str, path: str) -> str:
    path = os.path.expanduser(path)
    if os.path.isabs(path):
        return path
    found = _SCHEME.match(file)
    if found is None:
        return os.path.normpath(os.path.join(os.path.dirname(file), path))
    # `..` never leaves the bucket or host.
    host, _, inner = found["rest"].partition("/")
    return f"{found['scheme']}://{host}" + os.path.normpath(os.path.join("/", os.path.dirname(inner), path))


def _cached(url: str, rest: str) -> str:
    root = os.environ.get("NVDATASET_CACHE_DIR")
    dataset, _, inner = rest.partition("/")
    name, at, version = dataset.rpartition("@")
    if not root or not at or not name or not version:
        raise ConfigError(
            "a dss:// path needs NVDATASET_CACHE_DIR",
            path=url,
            found=f"NVDATASET_CACHE_DIR={root}",
            expected="the variable, and dss://name@version/…",
        )
    return os.path.normpath(os.path.join(root, name, version, inner))
