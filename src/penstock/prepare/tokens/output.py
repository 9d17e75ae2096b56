"""What an output is by its name: one dataset, or a folder of token files."""

from __future__ import annotations

import os

from penstock.abc import Store
from penstock.errors import ConfigError
from penstock.formats.tokens.folder.index import SUFFIXES
from penstock.prepare.tokens.understand import format_of, no_format, require_packed
from penstock.store.outputs import output_path
from penstock.store.place import Given, Place, place_of

DEFAULT_FILE_TOKENS = 4_000_000_000

_ONE_FOLDER = ("mds", "flat-tokens")
"""Formats of which one dataset is a folder."""


def understand_output(given: Given, to: str | None, file_tokens: int | None, store: Store) -> tuple[Place, str, bool]:
    """`(place, format, whether it is a folder of token files)`.

    A known suffix decides first; then a slash at the end, or a folder that is there.

    Raises:
        ConfigError: nothing says what it is, or two things contradict each other.
    """
    place = place_of(given, None if _is_elsewhere(given) else store)
    slash = not isinstance(given, Place) and os.fspath(given).endswith("/")
    place = Place(place.store, output_path(place.store, place.absolute))
    if to is not None:
        require_packed(to, place)
    known = format_of(place)
    if file_tokens is None and known is not None:
        return place, to or known, False
    if file_tokens is None and not slash and not _is_folder(place):
        if to is None:
            raise no_format(place)
        return place, to, False
    if file_tokens is None and to in _ONE_FOLDER:
        return place, to, False
    to = to or "pbin"
    if file_tokens is not None and known is not None:
        hint = "Give a folder name, or omit file_tokens (--file-tokens)"
        raise ConfigError(
            "this is the name of a single dataset, not a folder of token files", path=place.path, hint=hint
        )
    if file_tokens is not None and file_tokens < 1:
        raise ConfigError("file_tokens must be positive", found=f"file_tokens={file_tokens}", expected="1 or more")
    if to not in SUFFIXES:
        hint = "Omit file_tokens (--file-tokens)" if to == "mds" else None
        expected = " | ".join(SUFFIXES)
        raise ConfigError("not a token file format", path=place.path, found=to, expected=expected, hint=hint)
    return place, to, True


def _is_elsewhere(given: Given) -> bool:
    return not isinstance(given, Place) and not place_of(given).is_local


def _is_folder(place: Place) -> bool:
    return place.is_local and place.is_folder()
