"""What a folder holds, without what differs from run to run or between machines."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numcodecs
import xxhash
import zstandard

VOLATILE = re.compile(r"tool|check|binding|plan|time|host|who|began_s|rate|(.*_)?seconds")
"""Keys of side files and reports: versions, names of work, digests that cover these, times, people and machines."""
_SIDE = re.compile(r"\.penstock$|\.certificate\.json$|\.exclude\.jsonl$|\.info\.json$")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSION = re.compile(r"\bpenstock \d[\w.+]*")
_KNOWN = re.compile(r"\.nv-meta|\.info\.json|\.penstock.*|\.z(array|attrs|group|metadata)")
"""Names of files and folders that begin with a dot and belong to a dataset; others are what is left of work."""
_NUMBER = re.compile(r"\d+")
_LEAST_NUMBERED = 4
_MOST_TEXT_BYTES = 1 << 16
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\+00:00)?")


def record(folder: Path, before: Mapping[str, bytes] | None = None) -> dict[str, str]:
    """Return name → digest of each file below a folder, hidden ones too.

    Args:
        folder: to look into. An empty folder in it counts as a file; its name ends with a slash.
        before: files that were there before; those that are unchanged are left out, and those that are gone are named.
    """
    before = before or {}
    found: dict[str, str] = {}
    there = files_in(folder)
    for name, data in there.items():
        if before.get(name) != data:
            words = name.split("/")
            hidden = next((at for at, word in enumerate(words) if word[:1] == "." and not _KNOWN.fullmatch(word)), None)
            if hidden is None:
                content = b"" if data is None else _content(folder, folder / name, data)
                found[name] = xxhash.xxh3_64_hexdigest(content)[:10]
            else:
                found["/".join([*words[:hidden], ".*"])] = "left behind"
    return _grouped(found) | {name: "gone" for name in before if name not in there}


def _grouped(found: dict[str, str]) -> dict[str, str]:
    """Return one digest in place of those of many numbered files."""
    groups: dict[str, list[str]] = {}
    for name in found:
        groups.setdefault(_NUMBER.sub("*", name), []).append(name)
    grouped: dict[str, str] = {}
    for pattern, names in groups.items():
        if len(names) < _LEAST_NUMBERED:
            grouped |= {name: found[name] for name in names}
        else:
            joined = "\n".join(f"{name} {found[name]}" for name in names).encode()
            grouped[pattern] = f"{len(names)} files {xxhash.xxh3_64_hexdigest(joined)[:10]}"
    return grouped


def files_in(folder: Path) -> dict[str, Any]:
    """Return name → bytes of each file below a folder, and None for an empty folder."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = b"link to " + str(path.readlink()).encode()
        elif path.is_file():
            found[name] = path.read_bytes()
        elif not any(path.iterdir()):
            found[f"{name}/"] = None
    return found


def plain(value: Any, folder: Path | str) -> Any:
    """Return a report or a side file without volatile values and the path of a folder."""
    if isinstance(value, dict):
        listed = {"lists": [{**one, "digest": None} for one in value["lists"]]} if "lists" in value else {}
        return {
            plain(key, folder): plain(one, folder)
            for key, one in {**value, **listed}.items()
            if not VOLATILE.fullmatch(key)
        }
    if isinstance(value, list):
        return [plain(one, folder) for one in value]
    return plain_text(value, folder) if isinstance(value, str) else value


def plain_text(text: str, folder: Path | str) -> str:
    """Return a text with placeholders for the path of a folder, versions, times and UUIDs."""
    text = _VERSION.sub("penstock VERSION", text.replace(str(folder), "ROOT"))
    return _TIME.sub("TIME", _UUID.sub("UUID", text))


def _content(folder: Path, path: Path, data: bytes) -> bytes:
    if data.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
            data = "\n".join(database.iterdump()).encode()
    elif data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    elif data.startswith(b"\x28\xb5\x2f\xfd"):
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    elif (codec := _compressor(path)) is not None:
        data = bytes(codec.decode(data))
    if path.name.endswith(".sqlite.penstock"):
        return b""  # digests of the pages of a database, which differ from run to run
    if _SIDE.search(path.name):
        with contextlib.suppress(ValueError):  # of a damaged one the bytes count
            text = data.decode()
            documents = text.splitlines() if path.suffix == ".jsonl" else [text]
            return "\n".join(json.dumps(plain(json.loads(one), folder), sort_keys=True) for one in documents).encode()
    if len(data) > _MOST_TEXT_BYTES:
        return data
    return plain_text(data.decode("latin-1"), folder).encode("latin-1")


def _compressor(path: Path) -> Any:
    """Return the codec of a chunk of a Zarr array, if there is one."""
    known = path.with_name(".zarray")
    if path.name.startswith(".") or not known.exists():
        return None
    settings = json.loads(known.read_bytes())["compressor"]
    return None if settings is None else numcodecs.get_codec(settings)
