"""`exclude`: add samples to the exclude list of a dataset, or remove them from it. The data doesn't change."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, Unpack

import numpy as np

from penstock._keywords import Opening, definitions, were_given, with_options
from penstock._secrets import redacted_repr
from penstock.abc import SupportsKeys
from penstock.errors import ConfigError, NotFound
from penstock.formats import find_format
from penstock.formats._excluded import (
    as_listed,
    files_of_lines,
    list_paths,
    lists_of_files,
    place_of_list,
    record_list,
    require_whole,
)
from penstock.look.find import Wanted, find
from penstock.look.samples import Dataset, digest_at, digests_of, open_dataset, samples_at, samples_of, stretches
from penstock.reshape.filter import read_indices
from penstock.store.derived import keeping_nothing
from penstock.store.exclude_list import NO_LIST, Entry, ExcludeList, change_list, list_if_there
from penstock.store.place import Given, Place, dataset_at, place_of
from penstock.types import IntArray, OpenOptions

Found: TypeAlias = dict[int, str | None]
"""Index → key."""

OPTIONS = ("format", *(name for name, _, one in definitions(Opening) if one.common), "trust", "follow_links")
"""Opening options of `exclude` and `purge`."""


@redacted_repr
@dataclass(frozen=True, slots=True)
class ExcludeReport:
    """Result of `exclude`.

    Attributes:
        path: the exclude list; for several JSONL files, each with its own list, the path that was passed.
        added: number of samples newly excluded.
        removed: number of samples no longer excluded.
        already: number of samples that were already in the requested state.
        entries: number of samples excluded now.
        digest: digest of the list; in a dry run over several files, of the lists as they are.
        also: the same for each dataset made from this one.
        files: the same for each file whose list changed, if there are several.
    """

    path: str
    added: int
    removed: int
    already: int
    entries: int
    digest: str
    also: tuple[ExcludeReport, ...] = ()
    files: tuple[ExcludeReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """A dataset and its exclude list.

    Attributes:
        dataset: the dataset with all samples.
        fingerprint: its fingerprint in the list.
        split: its split in the list.
        place: place of the list; None for several JSONL files, each of which has its own list.
    """

    dataset: Dataset
    fingerprint: str
    split: str | None
    place: Place | None

    @property
    def list_path(self) -> str:
        """Path of the list in errors."""
        return self.dataset.place.path if self.place is None else self.place.path

    def read(self) -> ExcludeList:
        """Read the list, which may be missing."""
        if self.place is not None:
            return list_if_there(self.place)
        return lists_of_files(self.dataset.source)


@with_options(Opening, omit=Opening.__annotations__.keys() - set(OPTIONS), strict=True)
def exclude(
    target: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    key: str | Sequence[str] | None = None,
    indices: Sequence[int] | IntArray | Given | None = None,
    where: str | None = None,
    reason: str | None = None,
    list: Given | None = None,
    undo: bool = False,
    also: Sequence[str | os.PathLike[str]] = (),
    who: str | None = None,
    dry_run: bool = False,
    key_field: str | None = None,
    format: str | None = None,
    **opening: Unpack[Opening],
) -> ExcludeReport:  # fmt: skip
    """Add samples to a dataset's exclude list, or remove them from it. The data itself doesn't change.

    Reading an excluded sample raises `Excluded`, streams substitute another sample, and other functions skip it. Use
    `penstock purge` to rewrite the data without it. All samples are looked up before anything is written. Samples that
    are already excluded stay excluded. Concurrent calls wait for each other.

    Args:
        target: path or URL of a dataset in any format. In a directory, pattern or list of JSONL files, each file has
            its own list next to it, which also applies when only some of the files are opened.
        key: key of a sample, or several; see `penstock.find`.
        indices: sample numbers from 0; or a file with one per line, or a `.npy` file.
        where: expression on the fields.
        reason: why; recorded in each entry.
        list: file of the list. By default `<side file>.exclude.jsonl` next to the data. Required if the data isn't on
            this machine; pass it to `penstock.open(..., excludes=)` then.
        undo: remove these samples, or all, from the list instead.
        also: datasets made from the target, such as tokens. Their samples from the excluded ones are excluded too.
        who: recorded in each entry; by default the user of this process.
        dry_run: check everything and report what would change, without writing.
        key_field: as in `penstock.find`.
        format: as in `penstock.find`.
        opening: `split, layout, eos_id, planes, trust` and `follow_links`, as in `penstock.open`.

    Returns:
        A report with `added`, `removed`, `already` and `entries`, the number of samples now excluded.

    Raises:
        NotFound: the dataset doesn't exist, or no sample has a key.
        ConfigError: there is nothing to exclude, no reason, or the list can't be written.
        Corrupt: the existing list is unreadable or belongs to other data.

    Examples:
        >>> import penstock as ps
        >>> report = ps.exclude("docs.jsonl", key="a3", reason="requested by the author")
        >>> report.added
        1
        >>> ps.open("docs.jsonl")[2]
        Traceback (most recent call last):
        ...
        penstock.errors.Excluded: ...
        >>> ps.exclude("docs.jsonl", key="a3", undo=True).removed
        1
    """
    options: dict[str, Any] = {"format": format, **opening}
    if wrong := sorted(options.keys() - {*OPTIONS}):
        raise ConfigError(f"unknown option {', '.join(wrong)}", expected=", ".join(OPTIONS))
    keys = [] if key is None else [key] if isinstance(key, str) else [*map(str, key)]
    _require_sense(keys, indices, where, reason, undo=undo)
    with keeping_nothing(dry_run):
        if undo:
            if also:
                raise ConfigError("--also only works when excluding samples", hint="Undo it in each dataset separately")
            return _undone(target, keys, indices, where, key_field, list, options, dry_run=dry_run)
        listed = open_listed(target, list, options)
        found = _chosen(listed, target, keys, indices, where, key_field, options)
        parts = _by_file(listed, found, options)
        sources = parts if parts[0][0] is listed else [(listed, found), *parts]
        others = [_made_from(one, sources, key_field) for one in also]
        said = (str(reason), now(), who or user())
        reports = [_add(*one, said, dry_run=dry_run) for one in others]
        own = [_add(*one, said, dry_run=dry_run) for one in parts]
        return replace(_of_all(listed, own, dry_run=dry_run), also=tuple(reports))


def excluded_samples(target: Any, *, list: Given | None = None, **options: Any) -> ExcludeList:
    """Return the exclude list of a dataset; it has no entries if there is none. Arguments are those of `exclude`."""
    return open_listed(target, None, options).read() if list is None else list_if_there(place_of(list))


def open_listed(target: Any, given: Given | None, options: dict[str, Any]) -> Listed:
    """Open a dataset, and find the place of its exclude list."""
    if not isinstance(target, str | os.PathLike):
        return _open_several(target, given, options)
    place = dataset_at(target, follow_links=bool(options.get("follow_links")))
    chosen = find_format(place, options.get("format"), OpenOptions(layout=options.get("layout")))
    asked = {name: value for name, value in were_given(options).items() if name in OPTIONS}
    dataset = open_dataset(target, {**asked, "format": chosen.name})
    opening = OpenOptions(**{name: value for name, value in asked.items() if name != "format"}, excludes=NO_LIST)
    whole = as_listed(chosen, place.store, place.path, opening)
    if given is None:
        require_whole(chosen, place.store, place.path, opening, whole)
    if len(whole) != len(dataset):
        raise ConfigError("with these options, samples have different indices", path=place.path, found=len(dataset),
                          expected=len(whole))  # fmt: skip
    if given is None and not place.is_local:
        hint = "Specify a file with --excludes (list=), and open the data with excludes="
        raise ConfigError("exclude lists next to remote data aren't read", path=place.path, hint=hint)
    if chosen.name == "jsonl-files" and given is None:
        return Listed(dataset, whole.fingerprint, None, None)
    path, split = place_of_list(chosen, place.store, place.path, opening, whole)
    return Listed(dataset, whole.fingerprint, split, Place(place.store, path) if given is None else place_of(given))


def _open_several(paths: Sequence[str | os.PathLike[str]], given: Given | None, options: dict[str, Any]) -> Listed:
    dataset = open_dataset(paths, were_given(options))
    if given is not None:
        return Listed(dataset, dataset.source.fingerprint, None, place_of(given))
    if not files_of_lines(dataset.source):
        what = "exclude lists for individual files are only supported for JSONL"
        raise ConfigError(
            what, path=dataset.place.path, hint="Exclude samples of their folder, or specify a list: --excludes (list=)"
        )
    return Listed(dataset, dataset.source.fingerprint, None, None)


def _require_sense(keys: Sequence[str], indices: object, where: str | None, reason: str | None, *, undo: bool) -> None:
    given = {"key": keys, "indices": indices, "where": where}
    asked = [name for name, value in given.items() if value is not None and not (name == "key" and not keys)]
    if len(asked) > 1 or (not asked and not undo):
        expected = "one of key (--key), indices (--indices), where (--where)"
        raise ConfigError(
            "the samples to exclude are not specified", found=" and ".join(asked) or "nothing", expected=expected
        )
    if not undo and not (reason or "").strip():
        hint = "Pass --reason TEXT (reason=). It is recorded in the list with the user and the time"
        raise ConfigError("a reason is required", hint=hint)
    if undo and reason is not None:
        raise ConfigError("undoing an exclusion needs no reason", found=reason, hint="Omit it")


# --- finding -------------------------------------------------------------------------------------------------------


def _chosen(
    listed: Listed, target: Any, keys: Sequence[str], indices: Any, where: str | None, key_field: str | None,
    options: dict[str, Any],
) -> Found:  # fmt: skip
    """Return index → key of the samples to exclude."""
    dataset = listed.dataset
    asked = were_given(options)
    if indices is not None:
        found = read_indices(indices)
        wrong = found[(found < 0) | (found >= len(dataset))]
        if len(wrong):
            expected = f"0 to {len(dataset) - 1}"
            raise NotFound("sample index out of range", path=dataset.place.path, found=int(wrong[0]), expected=expected)
        return {int(index): None for index in np.unique(found)}
    if where is not None and dataset.tokens is None:
        hits = find(target, where=where, excludes=NO_LIST, **asked).found
        if not hits:
            raise NotFound("no sample matches the expression", path=dataset.place.path, found=where)
        return {one.index: one.key for one in hits}
    if dataset.tokens is not None:
        what = "token documents have no keys" if where is None else "token documents have no fields"
        hint = "Use --indices, or exclude samples of the data that they were packed from, with --also"
        if where is not None:
            path = dataset.place.path
            hint = (
                f"Use --indices with indices that `penstock find {path} --text T --tokenizer FILE --json` returns, or "
                f"exclude samples of the data that they were packed from, with --also {path}"
            )
        raise ConfigError(what, path=dataset.place.path, hint=hint)
    found_keys = dict(_by_keys(dataset, target, keys, key_field, asked))
    _require_keys(dataset.place.path, keys, found_keys.values(), "no sample has this key; nothing is excluded")
    return found_keys


def _require_keys(path: str, keys: Sequence[str], there: Iterable[str | None], what: str) -> None:
    known = set(there)
    missing = [key for key in dict.fromkeys(keys) if key not in known]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise NotFound(what, path=path, found=", ".join(map(repr, missing[:3])) + more)


def _by_keys(
    dataset: Dataset, target: Any, keys: Sequence[str], key_field: str | None, asked: dict[str, Any]
) -> Iterator[tuple[int, str | None]]:
    if key_field is None and isinstance(dataset.source, SupportsKeys):
        for key in keys:
            with contextlib.suppress(NotFound):
                yield dataset.source.index_of(key), key
        return
    if len(keys) == 1:
        hits = find(target, key=keys[0], key_field=key_field, excludes=NO_LIST, **asked).found
        yield from ((one.index, keys[0]) for one in hits)
        return
    wanted, among = Wanted(keys[0], None, None, key_field, None), set(keys)
    for task in stretches(dataset):  # one pass for all of them
        for start, samples in samples_of(dataset, task.start, task.stop):
            found = ((index, wanted.key_of(sample)) for index, sample in enumerate(samples, start))
            yield from ((index, key) for index, key in found if key in among)


# --- changing ------------------------------------------------------------------------------------------------------


def _by_file(listed: Listed, found: Found, options: dict[str, Any]) -> list[tuple[Listed, Found]]:
    """Group samples by the exclude list that they belong to."""
    if listed.place is not None:
        return [(listed, found)]
    parts: dict[str, Found] = {}
    order = np.array(sorted(found), np.int64)
    for path, first, stop in files_of_lines(listed.dataset.source):
        low, high = np.searchsorted(order, (first, stop))
        if low < high:
            parts[path] = {index - first: found[index] for index in order[low:high].tolist()}
    opening = {"follow_links": options.get("follow_links")}  # each file is opened by its own name
    return [(open_listed(path, None, opening), here) for path, here in parts.items()]


def _of_all(listed: Listed, reports: Sequence[ExcludeReport], *, dry_run: bool) -> ExcludeReport:
    """Return one report on the changes to all lists of a dataset."""
    if listed.place is not None:
        return reports[0]
    after = listed.read()
    added, removed, already = (sum(getattr(one, name) for one in reports) for name in ("added", "removed", "already"))
    entries = len(after.entries) + (added - removed if dry_run else 0)
    counts = (added, removed, already, entries)
    return ExcludeReport(listed.list_path, *counts, after.digest, files=tuple(reports))


def _add(listed: Listed, found: Found, said: tuple[str, str, str], *, dry_run: bool) -> ExcludeReport:
    place = _place_of(listed)
    seen = dict(_seen(listed.dataset, found))
    new = [Entry(one, *seen[one], *said, listed.split, listed.fingerprint) for one in found]
    added: list[int] = []

    def change(before: tuple[Entry, ...]) -> list[Entry]:
        _require_of(listed, before)
        known = {one.sample for one in before}
        fresh = [one for one in new if one.sample not in known]
        added.append(len(fresh))
        return [*before, *fresh]

    after = change_list(place, change, record_list, dry_run=dry_run)
    return ExcludeReport(place.path, added[-1], 0, len(new) - added[-1], len(after.entries), after.digest)


def _place_of(listed: Listed) -> Place:
    if listed.place is None:
        raise ConfigError("several files can't share one exclude list", path=listed.dataset.place.path)
    return listed.place


def _undone(
    target: Any, keys: Sequence[str], indices: Any, where: str | None, key_field: str | None, given: Any,
    options: dict[str, Any], *, dry_run: bool,
) -> ExcludeReport:  # fmt: skip
    every, split = not keys and indices is None and where is None, options.get("split")
    if given is not None and where is None:  # without the data
        found = {} if indices is None else dict.fromkeys(read_indices(indices).tolist())
        report = _taken_off(place_of(given), keys, found, split, every=every, dry_run=dry_run)
        return replace(report, already=max(0, (len(found) or len(keys)) - report.removed))
    listed = open_listed(target, given, options)
    is_named = indices is not None or where is not None
    found: Found = _chosen(listed, target, (), indices, where, key_field, options) if is_named else {}
    if listed.place is None and not is_named:
        lists = [(place_of(path), found) for path in list_paths(listed.dataset.source)]
    else:
        lists = [(_place_of(one), here) for one, here in _by_file(listed, found, options)]
    if keys:
        entries = [one for place, _ in lists for one in list_if_there(place).entries]
        unlisted = [key for key in keys if key not in {one.key for one in entries}]
        if unlisted:  # already undone, or no key at all
            there = _by_keys(listed.dataset, target, unlisted, key_field, were_given(options))
            what = "no sample has this key; the list isn't changed"
            _require_keys(listed.dataset.place.path, unlisted, dict(there).values(), what)
    how = {"every": every, "dry_run": dry_run}
    report = _of_all(listed, [_taken_off(place, keys, here, split, **how) for place, here in lists], dry_run=dry_run)
    return replace(report, already=max(0, (len(found) or len(keys)) - report.removed))


def _taken_off(
    place: Place, keys: Sequence[str], gone: Found, split: str | None, *, every: bool, dry_run: bool
) -> ExcludeReport:
    removed: list[int] = []
    among = set(keys)

    def is_meant(one: Entry) -> bool:
        if split is not None and one.split not in (None, split):
            return False
        return every or one.key in among or one.index in gone

    def change(before: tuple[Entry, ...]) -> list[Entry]:
        kept = [one for one in before if not is_meant(one)]
        removed.append(len(before) - len(kept))
        return kept

    after = change_list(place, change, record_list, dry_run=dry_run)
    return ExcludeReport(place.path, 0, removed[-1], 0, len(after.entries), after.digest)


def _seen(dataset: Dataset, found: Found) -> Iterator[tuple[int, tuple[str | None, str]]]:
    """Read index → key and digest of only these samples."""
    order, wanted = np.array(sorted(found), np.int64), Wanted(None, None, None, None, None)
    if dataset.tokens is None:
        for index, sample in samples_at(dataset, order):
            key = wanted.key_of(sample) if found[index] is None else found[index]
            yield index, (key, digest_at(dataset, index, sample, with_keys=True).hex())
        return
    for near in np.split(order, np.flatnonzero(np.diff(order) != 1) + 1) if len(order) else ():
        first, stop = int(near[0]), int(near[-1]) + 1
        for index, (upper, lower) in enumerate(digests_of(dataset, first, stop, with_keys=True).tolist(), first):
            yield index, (found[index], f"{upper:016x}{lower:016x}")


def _require_of(listed: Listed, entries: Sequence[Entry]) -> None:
    """Raise `ConfigError` if a list belongs to other data."""
    other = next((one for one in entries if one.split == listed.split and one.dataset != listed.fingerprint), None)
    if other is not None:
        what = "the existing exclude list belongs to other data"
        hint = "Move it away, or use another one with --excludes (list=)"
        raise ConfigError(what, path=listed.list_path, found=other.dataset, expected=listed.fingerprint, hint=hint)


def now() -> str:
    """Return the time, in the format of entries and certificates."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def user() -> str:
    """Return the user of this process and the host."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user without a name
        return f"{os.getuid()}@{socket.gethostname()}"


# --- derived datasets ----------------------------------------------------------------------------------------------


def _made_from(
    made: str | os.PathLike[str], parts: Sequence[tuple[Listed, Found]], key_field: str | None
) -> tuple[Listed, Found]:
    """Find the samples of another dataset that were made of samples of the target, or of its files.

    If its lineage doesn't record them, samples with the same keys are used.

    Raises:
        ConfigError: neither lineage nor keys identify them.
    """
    from penstock.look.lineage import documents_made_of

    other = open_listed(made, None, {})
    sources = [(listed.dataset, np.array([*here], np.int64)) for listed, here in parts]
    try:
        return other, documents_made_of(other.dataset, sources)
    except ConfigError:
        listed, chosen = parts[0]
        keys = [key for _, (key, _) in _seen(listed.dataset, chosen) if key is not None]
        if other.dataset.tokens is not None or len(keys) < len(chosen):
            raise
        try:
            same = dict(_by_keys(other.dataset, made, keys, key_field, {}))
        except ConfigError:  # its samples have no keys
            same = {}
        if not same:  # different kinds of keys look the same as samples that were filtered out
            raise
        return other, same
