"""What a replaced directory may contain, and its removal: only files that its dataset lists are removed."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

from penstock._secrets import logger
from penstock.errors import ConfigError, PenstockError, Unreachable
from penstock.store._files import STAGED_SUFFIX, is_folder, is_link, is_staged_name, is_there, raised, try_to_remove

Owned: TypeAlias = Callable[[str], "Collection[str] | None"]
"""A folder → the files of the dataset in it, by their paths inside, the one that makes it visible last; None where
there is none."""

MARK_SUFFIX = f".writing{STAGED_SUFFIX}"
_PIECE = re.compile(r"\.writing-\d{5,}\.staged$")
_SHOWN = 3
_log = logger()


def mark_path(last: str) -> str:
    """Return the path of a writer's mark, from the file that makes its dataset visible; see `store.object_folder`."""
    folder, _, name = last.rpartition("/")
    return f"{folder}/.{name.lstrip('.')}{MARK_SUFFIX}"


def piece_path(mark: str, number: int) -> str:
    return f"{mark.removesuffix(STAGED_SUFFIX)}-{number:05d}{STAGED_SUFFIX}"


def mark_of(path: str) -> str | None:
    """Return the mark that a file is, or is a piece of; None for another file."""
    return _PIECE.sub(MARK_SUFFIX, path) if path.endswith(MARK_SUFFIX) or _PIECE.search(path) else None


def listed(own: Owned | None, folder: str) -> list[str] | None:
    """Return the files of the dataset in a directory; None if there is none, or its list is damaged or leaves it."""
    try:
        names = None if own is None else own(folder)
    except PenstockError as error:
        if isinstance(error, Unreachable):
            raise
        return None
    names = None if names is None else list(names)
    return names if names is None or all(map(_is_inside, names)) else None


def _is_inside(name: str) -> bool:
    """Return whether a name is that of a file below a directory: lists are untrusted, and their files are removed."""
    return "\0" not in name and not any(piece in ("", ".", "..") for piece in name.split("/"))


def unlisted_files(
    folder: str, names: Collection[str], unfinished: Callable[[str], bool] | None = None
) -> Iterator[str]:
    """Yield the other content of a directory, by paths inside: files, links, and empty directories.

    Args:
        folder: the directory.
        names: of the files that are expected.
        unfinished: returns whether a name belongs to unfinished work, which is skipped.

    Raises:
        OSError: a directory in it can't be read.
    """
    known = set(names)
    above = folders_of(known)
    for root, folders, files in os.walk(folder, onerror=raised):
        folders[:] = sorted(name for name in folders if not is_staged_name(name))
        inner = "" if root == folder else os.path.relpath(root, folder) + "/"
        if not inner and unfinished is not None:
            folders[:] = [name for name in folders if f"{name}/" in above or not unfinished(name)]
            files = [name for name in files if not unfinished(name)]
        links = [name for name in folders if is_link(os.path.join(root, name))]
        for name in sorted(files + links):
            is_way = f"{inner}{name}/" in above  # a link: what is below it is no file of this folder
            if (inner + name not in known or is_way) and not is_staged_name(name):
                yield inner + name
        if inner and not files and not folders and inner not in above:
            yield inner


def folders_of(names: Collection[str]) -> set[str]:
    """Return the directories of files, by their paths inside, with a slash at the end."""
    return {name[: place + 1] for name in names for place, letter in enumerate(name) if letter == "/"}


def require_replaceable(folder: str, own: Owned | None) -> list[str]:
    """Return the files that the dataset in a directory lists.

    Raises:
        ConfigError: there is no dataset, or something else too; three files are named.
    """
    if not is_folder(folder) or is_link(folder):
        raise ConfigError(
            "the existing output is not a folder", path=folder, hint="Choose another output, or remove it"
        )
    names = listed(own, folder)
    refuse_unlisted(folder, list(unlisted_files(folder, names or ())), names=names is not None)
    return names or []


def refuse_unlisted(folder: str, others: Sequence[str], *, names: bool) -> None:
    """Raise `ConfigError` if a directory holds other files, which are named, or no dataset."""
    if names and not others:
        return
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    raise ConfigError(
        "the folder contains files that aren't part of its dataset"
        if names
        else "the folder doesn't contain a dataset in this format",
        path=folder,
        found=", ".join(others[:_SHOWN]) + more if others else None,
        expected="only files listed in the index of the dataset",
        hint="Choose another output, or remove them",
    )


def drop_replaced(os_module: Any, folder: str, names: Collection[str], target: str) -> None:
    """Remove the files of a replaced dataset; if there is anything else, the directory stays.

    Args:
        os_module: module that does the work.
        folder: hidden directory of the replaced dataset.
        names: of the files that it lists, the one that makes it visible last.
        target: the output; a directory that stays is renamed to a name next to it, and logged.
    """
    if next(unlisted_files(folder, names), None) is None:
        _remove_listed(os_module, folder, names)
    left = next(unlisted_files(folder, names), None)
    if left is not None:  # it came at the last moment
        kept = f"{target}.kept-{secrets.token_hex(4)}"
        os_module.rename(folder, kept)
        _log.warning(
            "%s: the replaced output contains %s, which isn't part of its dataset: kept as %s", target, left, kept
        )


def _remove_listed(os_module: Any, folder: str, names: Collection[str]) -> None:
    """Remove the files in the order of `names`, which may list one twice, or one that is missing; then directories."""
    for name in names:
        if is_there(path := os.path.join(folder, name)):
            try_to_remove(os_module.unlink, path)
    for root, _, files in os.walk(folder, topdown=False):
        hidden = any(map(is_staged_name, os.path.relpath(root, folder).split("/")))
        for name in files:
            if hidden or is_staged_name(name):  # of a killed writer
                try_to_remove(os_module.unlink, os.path.join(root, name))
        try_to_remove(os_module.rmdir, root)
