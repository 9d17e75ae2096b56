"""Whose an index is: `a.idx` may be that of `a.jsonl`, of `a.txt`, of Megatron-LM's `a.bin`, or of Energon's `a`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.errors import ConfigError, FormatError, NotFound, UnsafeData
from penstock.formats.jsonl.build import index_path_for
from penstock.formats.jsonl.energon import energon_index_path
from penstock.formats.jsonl.index import MEGATRON_HEAD, decode_index
from penstock.store.base import Store
from penstock.store.place import same_file
from penstock.store.side_file import NEXT

_SUFFIXES = (".jsonl", ".ndjson")
_PICKLE_HEAD = b"\x80"
_LINE_END_BYTES = 2
_NEVER_LINES = (".idx", ".penstock", ".next", ".pbin", ".staged")


def require_own_index(store: Store, path: str | None, index_path: str, flavor: str, *, has_data: bool) -> None:
    """Require that the file which an index replaces is an index of this file: other tools use such names too.

    Args:
        store: where it is.
        path: the file that it is the index of; None where a user named the index too.
        index_path: the index.
        flavor: whose index is to come.
        has_data: its file is there.

    Raises:
        ConfigError: it is another's, or belongs to no file and is no index.
    """
    if not store.exists(index_path):
        return
    head = store.get(index_path, 0, len(MEGATRON_HEAD))
    if flavor == "energon":
        other = head == MEGATRON_HEAD or head.startswith(_PICKLE_HEAD)
        fits = not other and (has_data or store.size(index_path) % 8 == 0)
    else:
        fits = head != MEGATRON_HEAD if has_data else head.startswith(_PICKLE_HEAD)
    hint = "Name another output, or remove it"
    if not fits:
        raise ConfigError("the path of the index is taken by something else", path=index_path, hint=hint)
    owner = None if flavor == "energon" or path is None else _other_owner(store, path, index_path)
    if owner is not None:
        what = "the index at this path belongs to another file"
        raise ConfigError(what, path=index_path, found=owner, hint=hint)


def _other_owner(store: Store, path: str, index_path: str) -> str | None:
    """Another file whose index it is, as far as can be told: one called as JSONL is, or that it fits."""
    others = list(_of_this_stem(store, path, index_path))
    # What is about to take the place of the index tells of the file too, where a writer was killed.
    if not others or _fits(store, index_path, path) or _fits(store, index_path + NEXT, path):
        return None
    named = [one for one in others if one.endswith(_SUFFIXES)]
    return next(iter(named), None) or next((one for one in others if _fits(store, index_path, one)), None)


def _of_this_stem(store: Store, path: str, index_path: str) -> Iterator[str]:
    """Files beside `path` that share the name of its index."""
    folder, stem = os.path.split(index_path.removesuffix(".idx"))
    names = [stem + suffix for suffix in _SUFFIXES]
    if store.is_local:
        found = (name for name in os.listdir(folder or ".") if os.path.splitext(name)[0] == stem)
        names = sorted(name for name in found if not name.endswith(_NEVER_LINES))
    for name in names:
        other = os.path.join(folder, name)
        is_own = same_file(other, path) if store.is_local else other == path
        if not is_own and store.exists(other) and not store.is_folder(other):
            yield other


def _fits(store: Store, index_path: str, path: str) -> bool:
    """Whether an index ends where a file does."""
    if not store.exists(path) or store.is_folder(path):
        return False
    try:
        lines = decode_index(store, index_path)
        return 0 <= store.size(path) - (int(lines[-1].sum()) if len(lines) else 0) <= _LINE_END_BYTES
    except (FormatError, UnsafeData, NotFound):
        return False


def own_index_of_other_flavor(store: Store, path: str, flavor: str) -> str | None:
    """The index that the other flavor made of the file at `path`, where that file alone can be its owner."""
    for_energon = flavor == "energon"
    try:
        other = index_path_for(path) if for_energon else energon_index_path(path)
        # Beside a `.bin` an `.idx` may belong to tokens of Megatron.
        if store.exists(f"{other.removesuffix('.idx')}.bin"):
            return None
        require_own_index(store, path, other, "modalities" if for_energon else "energon", has_data=False)
    except ConfigError:
        return None
    return other if store.exists(other) else None
