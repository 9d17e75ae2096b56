"""What an output is by its name: one dataset, or a folder of token files."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.abc import Format, Store
from penstock.errors import ConfigError
from penstock.formats import BUILT_IN, format_names, get_format, usable_format
from penstock.formats.tokens.folder.index import SUFFIXES
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


def format_of(output: Place) -> str | None:
    """The token format whose suffix an output has."""
    for one in _packed():
        if output.path.rstrip("/").endswith(one.traits.suffixes or ("\0",)):
            return one.name
    return None


def no_format(output: Place) -> ConfigError:
    """The error for an output that is neither a folder nor named like a file of a format."""
    packed = list(_packed())
    suffixes = ", ".join(sorted({suffix for one in packed for suffix in one.traits.suffixes}))
    names = ", ".join(sorted({one.name for one in packed} | {"mds"}))
    return ConfigError(
        "the format isn't clear from the name of the output",
        path=output.path,
        expected=suffixes,
        hint=f"End it with a slash for a folder of token files, or specify the format with to= (--to): {names}",
    )


def require_packed(to: str, output: Place) -> None:
    """That a format which is written holds tokens; raises `ConfigError`. Others say themselves why they can't."""
    traits = get_format(to).traits
    if traits.write and not traits.tokens and to != "mds":
        names = " | ".join(sorted({one.name for one in _packed()} | {"mds"}))
        raise ConfigError("not a format for packed tokens", path=output.path, found=to, expected=names)


def _packed() -> Iterator[Format]:
    """Token formats that can be written; plug-ins last, as looking for them takes time."""
    asked: set[str] = set()
    for names in (BUILT_IN, format_names):
        for one in (usable_format(name, []) for name in (names() if callable(names) else names)):
            if one is not None and one.traits.tokens and one.traits.write and one.name not in asked:
                asked.add(one.name)
                yield one
