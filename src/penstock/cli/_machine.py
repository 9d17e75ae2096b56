"""Facts that `penstock doctor` reports. Large packages are not imported to learn their versions."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from penstock import __version__, executors, formats
from penstock._naming import nearest
from penstock._optional import DISTRIBUTION, extras, imported
from penstock._secrets import redact
from penstock._settings import SECRETS, SETTINGS, has_settings_file, said_by, settings_path
from penstock.errors import ConfigError, PenstockError
from penstock.formats._registry import of_plug_in
from penstock.store._requests import RemoteOptions, whole_number
from penstock.store.cache_room import cache_use
from penstock.store.derived import cache_folder
from penstock.store.local import LocalStore

PACKAGES = ("torch", "numpy", "tokenizers", "gigatoken", "zstandard", "pyarrow", "zarr", "obstore", "ray")
"""Packages whose versions are always listed."""

ENGINES = ("gigatoken", "tokenizers")


def facts() -> dict[str, Any]:
    """Return versions, cores, limits, directories and settings of this machine."""
    here, set_ = os.getcwd(), {one.variable: _set(one.variable) for one in SETTINGS}
    versions: dict[str, str | None] = {"penstock": __version__, "python": platform.python_version()}
    versions |= {one: version_of(one) for one in PACKAGES}
    return {
        "versions": versions,
        "extras": missing_packages(),
        "cores": len(os.sched_getaffinity(0)),
        "limits": {
            "open_files": _limit(resource.RLIMIT_NOFILE),
            "memory_bytes": _limit(resource.RLIMIT_AS),
            "processes": _limit(resource.RLIMIT_NPROC),
        },
        "folder": {"path": here, "file_system": file_system_of(here)},
        "cache": _cache(),
        "faults": faults(),
        "plug_ins": plug_ins(),
        "engines": [one for one in ENGINES if versions[one]],
        "settings_file": {"path": settings_path(), "is_there": has_settings_file()},
        "settings": {name: value for name, (value, _) in set_.items()},
        "settings_from": {name: where for name, (_, where) in set_.items() if where is not None},
    }


def _cache() -> dict[str, Any]:
    """Describe the cache directory, or return None for each fact if it is unusable; see `faults`."""
    try:
        path = cache_folder()
    except PenstockError:
        return dict.fromkeys(("path", "file_system", "size_bytes", "free_bytes"))
    return {
        "path": path,
        "file_system": file_system_of(path),
        "size_bytes": sum(one.size_bytes for one in cache_use()),
        "free_bytes": shutil.disk_usage(_existing(path)).free,
    }


def faults() -> list[str]:
    """Return messages about unusable settings."""
    found: list[str] = []
    for check in (_require_cache, RemoteOptions.from_environment, lambda: whole_number("PENSTOCK_CACHE_BYTES")):
        try:
            check()
        except PenstockError as error:
            found.append(str(error))
    found.extend(_foreign_package())
    known = [one.variable for one in SETTINGS]
    for variable in sorted(os.environ):
        if variable.startswith("PENSTOCK_") and variable not in known:
            close = nearest(variable, known)
            found.append(f"{variable} is not a known setting" + (f". Did you mean {close}?" if close else ""))
    return found


def _require_cache() -> None:
    path = cache_folder()
    above, hint = _existing(path), "Set PENSTOCK_CACHE to a directory that you can write to"
    if not LocalStore().is_folder(above):
        raise ConfigError("the cache path is not a directory", path=path, found=above, hint=hint)
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError("the cache directory is not writable", path=path, found=above, hint=hint)


def _set(variable: str) -> tuple[str | None, str | None]:
    """Return the value of a setting without secrets, and its origin."""
    value, where = said_by(variable)
    return ("***" if value and variable in SECRETS else value and redact(value)), where


def plug_ins() -> list[dict[str, str | None]]:
    """Import all plug-ins; return their names, packages and errors."""
    kinds = (
        ("format", formats.ENTRY_POINT_GROUP, formats.BUILT_IN, of_plug_in),
        ("executor", executors.ENTRY_POINT_GROUP, executors.EXECUTORS, imported),
    )
    found: list[dict[str, str | None]] = []
    for kind, group, own, load in kinds:
        for point in metadata.entry_points(group=group):
            fault = "ignored: Penstock has a built-in of this name" if point.name in own else None
            try:
                load(point)
            except PenstockError as error:
                fault = fault or str(error)
            package = f"{point.dist.name} {point.dist.version}" if point.dist else None
            found.append({"name": point.name, "kind": kind, "package": package, "fault": fault})
    return found


def version_of(package: str) -> str | None:
    """Return the version of a package, or None if it isn't installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def file_system_of(path: str) -> str:
    """Return the type of the file system of a path, which needn't exist."""
    path, best, kind = os.path.realpath(_existing(path)), "", "unknown"
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                _, point, name, *_ = line.split(" ")
                inside = path == point or path.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, name
    except OSError:
        return kind
    return kind


def missing_packages() -> dict[str, list[str]]:
    """Return each extra's packages that are not installed; empty if Penstock runs without being installed."""
    return {
        extra: [name for name in packages if not version_of(name)]
        for extra, packages in extras().items()
        if extra != "test"
    }


def _foreign_package() -> Iterator[str]:
    """Name an installed distribution `penstock`, which has the same import name."""
    if version := version_of("penstock"):
        yield (
            f"a distribution named penstock ({version}) is installed: an unrelated project or an older version of "
            f"this one, and its modules have the same import name. Run: pip uninstall penstock {DISTRIBUTION}. "
            "Then install Penstock again from its checkout or wheel"
        )


def _existing(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
