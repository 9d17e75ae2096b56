"""`repair`: the fixes for what `verify` finds."""

from __future__ import annotations

import os
from typing import Unpack, get_args

from penstock._keywords import Opening
from penstock.errors import ConfigError, Unsupported
from penstock.formats import files_at, find_format
from penstock.formats._door import open_options
from penstock.formats._planed_writer import settle_planes
from penstock.formats._planes import base_at, side_path_of
from penstock.store.commit_log import output_files, read_log
from penstock.store.outputs import NEXT, claimed
from penstock.store.place import Place, dataset_at
from penstock.store.side_file import load_manifest, record_in_side_file
from penstock.types import Action, Depth


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
            held.stage(place.child(".penstock").path, overwrite=True).abort()  # what a killed repair left of it goes
        return [*completed, *done]


def _interrupted_commit(format: str, place: Place, *, write: bool) -> list[Action]:
    """Return the completion of an interrupted commit, which is done by whoever claims the output."""
    path = files_at(format, place.path)[0]
    if not place.is_local or read_log(output_files(path)) is None:
        return []
    return [Action(f"{format}.replaced", path, "complete the commit that was interrupted", done=write)]
