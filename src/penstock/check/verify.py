"""`verify`: what is wrong with a dataset, where, and what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, get_args, runtime_checkable

from penstock.abc import Format, Store
from penstock.errors import ConfigError, UnsafeData, Unsupported
from penstock.formats import files_at, get_format, sniff
from penstock.store.cache import CachedStore
from penstock.store.outputs import claimed_data
from penstock.store.resolve import resolve_dataset
from penstock.types import Depth, Finding, OpenOptions

_CONTRADICTIONS = ("changed", "digest", "side-file", "added")
"""What codes of findings end in that say that data are not those of their side file."""


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
    if depth == "full" and isinstance(store, CachedStore):
        store.check_copies()  # what is looked at are the remote bytes, not what became of them in the cache
    found: list[Finding] = []
    try:
        found.extend(chosen.check(store, root, given, depth))
    except UnsafeData as error:  # a link out of the folder, met before anything could be said of the data
        where = str(error.path or root)
        found.append(Finding(f"{chosen.name}.unsafe", "error", where, None, error.what, None, error.hint))
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


def is_contradiction(finding: Finding, options: Mapping[str, Any]) -> bool:
    """Whether a finding says no more than that data contradict their side file, or that this can't be read.

    Args:
        finding: of `verify`.
        options: that were given to it: ids are held against the side file where these name no other limit.
    """
    what = finding.code.rpartition(".")[2]
    if what in ("token-range", "no-eos"):
        return options.get({"token-range": "vocab_size", "no-eos": "eos_id"}[what]) is None
    return what in _CONTRADICTIONS or finding.code == "folder.missing"


@runtime_checkable
class _MakesManifest(Protocol):
    """A format that can make the side file for data that another tool wrote."""

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        """Write the side file; returns its path.

        Raises:
            Corrupt: there is one that the data contradict, and `replace` is false.
        """
        ...


def write_side_file(
    path: str | os.PathLike[str], *, format: str | None = None, replace: bool = False, **options: Any
) -> str:
    """Make the side file of data: counts and digests, from every byte that is there. Returns its path.

    Args:
        path: file, folder or URL.
        format: format name; found by sniffing where it is None.
        replace: also where the side file that is there says otherwise, or can't be read.
        options: what `penstock.open` takes.

    Raises:
        Unsupported: the format keeps no side file.
        Corrupt: the data contradict the side file that is there, and `replace` is false.
        PrepareError: somebody writes this dataset.
    """
    given = open_options(options)
    store, root, chosen = find_format(path, format, given)
    if not isinstance(chosen, _MakesManifest):
        raise Unsupported(f"the format {chosen.name!r} keeps no side file", path=root)
    more = {"replace": True} if replace else {}  # formats of plug-ins may not know the word
    with claimed_data(store, *files_at(chosen.name, root)) as held:
        return chosen.write_manifest(held, root, given, **more)
