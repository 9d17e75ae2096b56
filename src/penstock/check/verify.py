"""`verify`: what is wrong with a dataset, where, and what to do."""

from __future__ import annotations

import os
from typing import Any, get_args

from penstock.abc import Format, Store, SupportsManifest
from penstock.errors import ConfigError, UnsafeData, Unsupported
from penstock.formats import get_format, sniff
from penstock.store.resolve import resolve_dataset
from penstock.types import Depth, Finding, OpenOptions


def verify(
    path: str | os.PathLike[str], *, depth: Depth = "sample", format: str | None = None, **options: Any
) -> list[Finding]:
    """Check a dataset; never writes, and bad data never raise.

    Args:
        path: file, folder or URL.
        depth: `"quick"` reads header, sizes and the index's structure; `"sample"` also some content; `"full"` every
            byte and digest.
        format: format name; found by sniffing where it is None.
        options: what `penstock.open` takes, such as `vocab_size=` and `eos_id=`.

    Returns:
        The findings, in the order of their places; none for a sound dataset.

    Raises:
        NotFound: nothing is at `path`.
        Unsupported: no format recognises it, or the format has no check.
    """
    if depth not in get_args(Depth):
        raise ConfigError(f"unknown depth {depth!r}", expected=" | ".join(get_args(Depth)))
    given = open_options(options)
    store, root, chosen = find_format(path, format, given)
    found: list[Finding] = []
    try:
        found.extend(chosen.check(store, root, given, depth))
    except UnsafeData as error:  # a link out of the folder, met before anything could be said of the data
        where = str(error.path or root)
        found.append(Finding(f"{chosen.name}.unsafe", "error", where, None, error.what, error.expected, error.hint))
    return found


def find_format(path: str | os.PathLike[str], format: str | None, options: OpenOptions) -> tuple[Store, str, Format]:
    """Store, path in it, and format (sniffed where `format` is None) of a dataset."""
    store, root = resolve_dataset(path, follow_links=options.follow_links)
    return store, root, get_format(format) if format else sniff(store, root)


def open_options(options: dict[str, Any]) -> OpenOptions:
    """The options of `penstock.open` as one object; raises `ConfigError` for an unknown one."""
    try:
        return OpenOptions(**options)
    except TypeError:
        known = [name for name in OpenOptions.__slots__ if not name.startswith("_")]
        unknown = sorted(set(options) - set(known))
        raise ConfigError(f"unknown option {', '.join(unknown)}", expected=", ".join(known)) from None


def write_side_file(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> str:
    """Make the side file of data that another tool wrote: counts and digests. Returns its path.

    Raises:
        Unsupported: the format keeps no side file.
    """
    given = open_options(options)
    store, root, chosen = find_format(path, format, given)
    if not isinstance(chosen, SupportsManifest):
        raise Unsupported(f"the format {chosen.name!r} keeps no side file", path=root)
    return chosen.write_manifest(store, root, given)
