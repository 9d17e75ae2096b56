"""Repair datasets, and write side files of data that another tool wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol, Unpack, get_args, runtime_checkable

from penstock._keywords import Opening
from penstock.abc import Format
from penstock.errors import ConfigError, Unsupported
from penstock.formats import files_at, find_format
from penstock.formats._opening import open_options
from penstock.formats._planed_writer import settle_planes
from penstock.formats._planes import base_at, listed_planes, planes_in_manifest, recorded_planes, side_path_of
from penstock.store.base import Store
from penstock.store.exclude_list import SUFFIX
from penstock.store.names import NEXT
from penstock.store.outputs import claimed
from penstock.store.place import Place, dataset_at
from penstock.store.side_file import load_manifest, record_in_side_file
from penstock.store.transaction import output_files, read_log
from penstock.types import Action, Depth, Finding, OpenOptions

_CONTRADICTIONS = ("changed", "digest", "side-file", "added")
"""Last words of codes of findings for data that contradicts its side file."""


def repair(
    path: str | os.PathLike[str],
    *,
    write: bool = False,
    format: str | None = None,
    depth: Depth = "quick",
    **options: Unpack[Opening],
) -> list[Action]:
    """List the possible repairs of a dataset, or make them.

    A repair keeps a backup next to the original.

    Args:
        path: file, directory or URL.
        write: make the changes.
        format: format name; detected by default.
        depth: how thoroughly to look for damage, as in `verify`. By default only indexes, headers and sizes.
        options: options of `penstock.open`. `eos_id=` allows a lost index to be rebuilt.

    Returns:
        One action per repair, with `code`, `path`, `what`, `done` and `possible`.

    Raises:
        NotFound: there is nothing at `path`.
        Unsupported: the format has no repair.
        PrepareError: another writer holds this dataset.

    Examples:
        >>> import penstock as ps
        >>> ps.repair("corpus.pbin")
        []
    """
    if depth not in get_args(Depth):
        raise ConfigError(f"unknown depth {depth!r}", expected=" | ".join(get_args(Depth)))
    opened = open_options(options)
    place = dataset_at(path, follow_links=opened.follow_links)
    chosen = find_format(place, format, opened)
    if not chosen.traits.repair:
        raise Unsupported(f"the format {chosen.name!r} has no repair", path=place.path)
    completed = _interrupted_commit(chosen.name, place, write=write)
    with claimed(place.store, *files_at(chosen.name, place.path) if write else ()) as held:
        findings = list(chosen.check(held, place.path, opened, depth))
        base = base_at(chosen.name, held, place.path) if write else None
        side_path = None if base is None else side_path_of(chosen.name, base)
        before = None if side_path is None else load_manifest(held, side_path)
        waiting = None if side_path is None else load_manifest(held, side_path + NEXT)
        done = chosen.repair(held, place.path, opened, findings, write=write)
        after = None if side_path is None else load_manifest(held, side_path)
        if (completed and write) or (after is not None and after == waiting):
            settle_planes(chosen, held, place.path)  # a killed writer replaced the data, and their planes with them
        elif side_path is not None and before is not None and (after is None or after.planes is None):
            known = {"planes": before.planes, "has_exclude_list": before.has_exclude_list}
            known |= {"unknown_text": before.unknown_text}
            record_in_side_file(held, side_path, **known)
        if write and place.is_local and place.is_folder():
            held.stage(place.child(".penstock").path, overwrite=True).abort()  # from a killed repair
        return [*completed, *done]


def _interrupted_commit(format: str, place: Place, *, write: bool) -> list[Action]:
    """Return the completion of an interrupted commit, which happens when the output is claimed."""
    path = files_at(format, place.path)[0]
    if not place.is_local or read_log(output_files(path)) is None:
        return []
    return [Action(f"{format}.replaced", path, "complete the commit that was interrupted", done=write)]


def is_contradiction(finding: Finding, options: Mapping[str, Any]) -> bool:
    """Return whether a finding is only about the side file: the data contradicts it, or it can't be read.

    Args:
        finding: a finding of `verify`.
        options: the options of `verify`. IDs are checked against the side file unless an option gives another limit.
    """
    what = finding.code.rpartition(".")[2]
    if what in ("token-range", "no-eos"):
        return options.get({"token-range": "vocab_size", "no-eos": "eos_id"}[what]) is None
    return what in _CONTRADICTIONS or finding.code in ("folder.missing", "webdataset.missing-file")


@runtime_checkable
class _MakesManifest(Protocol):
    """A format that can write the side file of data that another tool wrote."""

    def write_manifest(self, store: Store, path: str, options: OpenOptions, /, *, replace: bool = False) -> str:
        """Write the side file and return its path.

        Raises:
            Corrupt: the data contradicts the existing one, and `replace` is false.
        """
        ...


def write_side_file(
    path: str | os.PathLike[str], *, format: str | None = None, replace: bool = False, **options: Unpack[Opening]
) -> str:
    """Write the side file of a dataset: counts and digests of all its bytes. Return its path.

    Args:
        path: file, directory or URL.
        format: format name; detected by default.
        replace: replace an existing side file that the data contradicts or that can't be read.
        options: options of `penstock.open`.

    Raises:
        Unsupported: the format has no side files.
        Corrupt: the data contradicts the existing side file, and `replace` is false.
        PrepareError: another run writes this dataset.
    """
    given = open_options(options)
    place = dataset_at(path, follow_links=given.follow_links)
    chosen = find_format(place, format, given)
    if not isinstance(chosen, _MakesManifest):
        raise Unsupported(f"the format {chosen.name!r} has no side file", path=place.path)
    more = {"replace": True} if replace else {}  # formats of plug-ins may not have this parameter
    with claimed(place.store, *files_at(chosen.name, place.path)) as held:
        planes = _planes_to_record(chosen, held, place.path, given, replace=replace)
        side_path = chosen.write_manifest(held, place.path, given, **more)
        manifest = load_manifest(held, side_path)
        if manifest is not None and (planes or planes_in_manifest(manifest)):
            record_in_side_file(held, side_path, planes=planes)
        record_in_side_file(held, side_path, has_exclude_list=held.exists(side_path + SUFFIX))
        return side_path


def _planes_to_record(
    chosen: Format, store: Store, path: str, given: OpenOptions, *, replace: bool
) -> Mapping[str, str | None]:
    """Return name → digest of the planes of data for its new side file; raises `Corrupt` if one is missing."""
    base = base_at(chosen.name, store, path)
    if base is None or given.split is not None:
        return {}
    source: Any = chosen.open(store, path, given)
    if given.planes is None:
        return {} if replace else recorded_planes(source)
    return {one.name: one.digest for one in listed_planes(store, base, source)}
