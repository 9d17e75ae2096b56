"""Names of files that aren't data yet, or no longer: for writers, readers, sweepers and listings.

`<name>` is the last part of an output's path, cut and completed by a digest if it is long. Names that end in `.staged`
and begin with a dot never appear in listings.

| name | content |
|---|---|
| `.<name>.<8 hex>.staged` | File or directory before its commit, also in object stores. |
| `.<name>.lock.staged` | Claim of the writer: a lock on this machine, its name in an object store. |
| `.<name>.claim.staged` | Object of a writer that uploads a file too large for a copy inside the store. |
| `.<name>.writing.staged` | Mark of a writer that uploads a folder file by file. |
| `.<name>.writing-<number>.staged` | List of the files that it has uploaded. |
| `.penstock-files.<8 hex>.staged/` | Small files that become visible together. |
| `.<name>.replaced.<8 hex>.staged/` | Second names of replaced files, until the new ones are verified. |
| `.<name>.new/` | Staging directory of a transaction, with `.log`, and `.lock` as second name of the lock. |
| `.<name>.commit` | Redo log of a transaction. |
| `.<name>.unfinished` | Record of the work whose output is about to become visible. |
| `.<name>.work/`, `<dir>/.work/`, `<dir>/.nv-meta.work/` | Plan and parts of a job; see `penstock.engine.work`. |
| `.<name>.pieces/` | Pieces of a shuffle; see `penstock.reshape.dataset_job`. |
| `.<name>.convert/` | Groups of a conversion by version 0.1. |
| `<name>.next` | Side file or index of new data that isn't visible yet; see `penstock.store.side_file`. |
| `<name>.kept-<8 hex>/` | Replaced directory with files that aren't part of its dataset. |
| `<name>.lock` | Lock while an exclude list changes, or a cached file is made. |
| `<name>.bak`, `.bak1`, … | File before a repair. |
| `.<name>.penstock-new`, `.penstock-old` | Index of Megatron tokens that are being replaced in an object store. |
| `.<name>.replaced.bin`, `.idx` | Second names of replaced Megatron tokens, by version 0.2. |
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import zlib

STAGED = ".staged"
LOCK = f".lock{STAGED}"
UPLOAD_CLAIM = f".claim{STAGED}"
WRITING = f".writing{STAGED}"
TOGETHER = "penstock-files"
REPLACED = ".replaced"
STAGING = ".new"
COMMIT_LOG = ".commit"
UNFINISHED = ".unfinished"
WORK = ".work"
METADATA_WORK = f".nv-meta{WORK}"
PIECES = ".pieces"
OLD_CONVERSION = ".convert"
NEXT = ".next"
KEPT_FOLDER = ".kept-"
LOCK_FILE = ".lock"
NEW_LOG_NAME = ".log"
BACKUP = ".bak"
NEW_INDEX, OLD_INDEX = ".penstock-new", ".penstock-old"

_MOST_STEM_BYTES = 200  # so that a long name still leaves room below the usual 255 bytes
_DIGEST_BYTES = 8
_END_LENGTH = 8 + len(STAGED)
_PIECE = re.compile(r"\.writing-\d{5,}\.staged$")
_HIDDEN = re.compile(r"(^|/)\.([^/]+)\.(?:[0-9a-f]{8}|lock)\.staged(?=/|$)")
_IN_STAGING = re.compile(r"(^|/)\.[^/]+\.new/(?=[^/]+$)")
_OF_WRITER = re.compile(r"\.(?:unfinished|(?:lock|writing)\.staged|[0-9a-f]{8}\.staged)$")


def hidden_stem(name: str) -> str:
    """Return the start of an output's hidden names, after the dot: its own name, or part of it and a digest.

    Without the digest, outputs with long names that only end differently would share their locks and unfinished work.
    """
    data = os.fsencode(name)
    if len(data) <= _MOST_STEM_BYTES:
        return name
    digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
    return f"{os.fsdecode(data[: _MOST_STEM_BYTES - len(digest) - 1])}~{digest}"


def hidden_name(name: str, suffix: str) -> str:
    return f".{hidden_stem(name)}{suffix}"


def hidden_path(path: str, suffix: str) -> str:
    """Return the path of a hidden name next to an output: an absolute path or a URL."""
    folder, name = os.path.split(path)
    return os.path.join(folder, hidden_name(name, suffix))


def object_path(path: str, suffix: str) -> str:
    """Return the path or key of a hidden name next to an object; it isn't cut."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}{suffix}"


def final_path(path: str) -> str:
    """Return a local path with final names in place of staged ones, for messages."""
    return _IN_STAGING.sub(r"\1", _HIDDEN.sub(r"\1\2", path))


def written_stem(name: str) -> str | None:
    """Return the name without its end if a writer made it to prepare a file, else None; see `hidden_name`."""
    found = _OF_WRITER.search(name)
    return None if found is None else name[: found.start()]


def is_staged_name(name: str) -> bool:
    return name.startswith(".") and name.endswith(STAGED)


def staged_start(name: str) -> str:
    return hidden_name(name, ".")


def staged_name(name: str, token: str | None = None) -> str:
    """Return a hidden name for a file; `token` is 8 hex digits, by default random ones."""
    return f"{staged_start(name)}{token or secrets.token_hex(4)}{STAGED}"


def nth_staged_name(name: str, number: int) -> str:
    """Return the `number`-th hidden name, from 0, to try for a local file."""
    # Names with the same truncated form still have different hidden names.
    return staged_name(name, f"{(zlib.crc32(os.fsencode(name)) + number) & 0xFFFFFFFF:08x}")


def start_of_staged(entry: str) -> str:
    """Return the result of `staged_start` for a staged file or folder."""
    return entry[:-_END_LENGTH]


def is_staged_for(entry: str, name: str) -> bool:
    return is_staged_name(entry) and start_of_staged(entry) == staged_start(name)


def lock_path(path: str) -> str:
    return hidden_path(os.path.abspath(path), LOCK)


def writing_path(last: str) -> str:
    """Return the path of a writer's mark, from the file that makes its dataset visible; see `store.object_folder`."""
    folder, _, name = last.rpartition("/")
    return f"{folder}/.{name.lstrip('.')}{WRITING}"


def writing_piece_path(mark: str, number: int) -> str:
    return f"{mark.removesuffix(STAGED)}-{number:05d}{STAGED}"


def writing_path_of(path: str) -> str | None:
    """Return the path of the mark if a file is a mark or a piece of one, else None."""
    return _PIECE.sub(WRITING, path) if path.endswith(WRITING) or _PIECE.search(path) else None
