"""`lineage`: trace a dataset back to its first inputs, from side file to side file; find samples made of others.

A side file records inputs by name, or by path below the folder that they share, and by digest. It has no paths of a
machine. An input is therefore searched next to the output, in the folder above, in `look_in`, and in folders next to
the output. Its digest shows whether it changed since it was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from penstock._limits import MOST_NODES, MOST_NODES_DEEP
from penstock._secrets import logger, redacted_repr
from penstock.errors import ConfigError, NotFound, PenstockError
from penstock.formats import open_source
from penstock.formats._excluded import files_of_lines
from penstock.formats._exclusions import stored
from penstock.formats.jsonl.scan import line_numbers
from penstock.formats.samples.webdataset.manifest import manifest_of_tars, side_path
from penstock.formats.samples.webdataset.source import WebdatasetSource
from penstock.look.samples import Dataset, open_dataset
from penstock.prepare.tokens.inputs import WHOLE_DIGEST_BYTES, describe_inputs, with_digests
from penstock.reshape.rows import Lines
from penstock.store.exclude_list import CERTIFICATE, NO_LIST
from penstock.store.fingerprint import sample_fingerprint
from penstock.store.patterns import is_pattern
from penstock.store.place import Given, Place, place_of, same_file
from penstock.store.row_map import read_row_map
from penstock.store.side_file import recorded_fingerprints
from penstock.types import IntArray, Manifest

State = Literal["output", "same", "changed", "not found"]
"""The dataset itself; an input with the recorded digest; one with another digest; one that wasn't found."""

_SAMPLE, _WHOLE, _DATASET = "sample", "xxh3", "dataset"
_MOST_BESIDE = 256
_MOST_CERTIFICATE_BYTES = 1 << 28


@redacted_repr
@dataclass(frozen=True, slots=True)
class Origin:
    """Dataset or file, and what it was made from.

    Attributes:
        path: path where it was found, else the name recorded in the side file.
        state: see `State`.
        digest: digest that the output recorded of it; for the output itself, its document digest, if any.
        format, samples, tool: as recorded in its own side file; None if there is none.
        tokenizer: name of the tokenizer, for outputs of `pack`.
        made_by: command and options.
        inputs: what it was made from; empty for original inputs, and for datasets that occur in the tree already.
    """

    path: str
    state: State
    digest: str | None = None
    format: str | None = None
    samples: int | None = None
    tool: str | None = None
    tokenizer: str | None = None
    made_by: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: tuple[Origin, ...] = ()


def lineage(target: Given, *, look_in: Sequence[Given] = ()) -> Origin:
    """Return the tree of inputs and commands that made a dataset.

    Reads side files. Of each input, it reads what the recorded digest covers: at most 64 places of a dataset, and all
    of a file of up to 4 GiB that `pack` read.

    Args:
        target: path or URL.
        look_in: further directories to search for inputs.

    Returns:
        The dataset's origin; `inputs` are the origins of its inputs.

    Raises:
        NotFound: there is nothing at `target`, or it has no side file.
        ConfigError: the tree has too many inputs, or is too deep.

    Examples:
        >>> import penstock as ps
        >>> written = ps.shuffle("docs.jsonl", "shuffled.jsonl", seed=0)
        >>> origin = ps.lineage("shuffled.jsonl")
        >>> origin.format, origin.samples, [source.path for source in origin.inputs]
        ('jsonl', 6, ['...docs.jsonl'])
    """
    place = place_of(target).bare()
    manifest = _manifest_at(place)
    if manifest is None:
        what = "no side file records how this was made"
        raise NotFound(what, path=place.path, hint="Datasets written by Penstock have one: FILE.penstock")
    walk = _Walk([place_of(one) for one in look_in])
    return walk.expand(Origin(place.shown, "output", manifest.digest), place, manifest, ())


@dataclass(slots=True)
class _Walk:
    look_in: Sequence[Place]
    beside: dict[str, list[Place]] = field(default_factory=dict[str, list[Place]])
    seen: set[str] = field(default_factory=set[str])
    num_nodes: int = 0

    def expand(self, origin: Origin, place: Place, manifest: Manifest | None, above: tuple[str, ...]) -> Origin:
        """Add what the side file of an origin records, and its inputs."""
        if manifest is None:
            return origin
        origin = replace(
            origin,
            format=manifest.format,
            samples=manifest.num_samples,
            tool=manifest.tool or None,
            tokenizer=manifest.tokenizer,
            made_by=({"command": "pack"} if manifest.inputs else {})
            | dict(manifest.options)
            | _purged(place, manifest),
        )
        if place.absolute in self.seen:
            return origin
        self.seen.add(place.absolute)
        self.num_nodes += len(manifest.inputs)
        if self.num_nodes > MOST_NODES or len(above) >= MOST_NODES_DEEP:
            expected = f"at most {MOST_NODES}, {MOST_NODES_DEEP} levels deep"
            raise ConfigError("too many nested inputs", path=place.path, expected=expected)
        return replace(origin, inputs=tuple(self._input(place, *one, above) for one in manifest.inputs.items()))

    def _input(self, output: Place, name: str, digest: str, above: tuple[str, ...]) -> Origin:
        changed: Place | None = None
        for place in self._candidates(output, name):
            if place.absolute == output.absolute or not _may_be(place):
                continue
            found = digests_like(place, digest)
            if digest in found:
                return self._same(output, place, digest, above)
            if changed is None and place.exists() and _may_be_compared(digest, found):
                changed = place
        if changed is None and (place := self._below(output, name, digest)) is not None:
            return self._same(output, place, digest, above)
        # A changed input isn't what was read: its own inputs don't belong to this tree.
        return Origin(name, "not found", digest) if changed is None else Origin(changed.shown, "changed", digest)

    def _same(self, output: Place, place: Place, digest: str, above: tuple[str, ...]) -> Origin:
        origin = Origin(place.shown, "same", digest)
        return self.expand(origin, place, _manifest_at(place), (*above, output.absolute))

    def _below(self, output: Place, name: str, digest: str) -> Place | None:
        """Search an input in the folders next to the output: inputs from a folder are recorded without its name."""
        folder = output.folder()
        if not _is_name(name) or not folder.is_local:
            return None
        if folder.absolute not in self.beside:
            shown = (folder.child(one) for one in folder.names() if not one.startswith("."))
            self.beside[folder.absolute] = list(islice((one for one in shown if one.is_folder()), _MOST_BESIDE))
        folders = self.beside[folder.absolute]
        for number, one in enumerate(folders):
            place = one.child(name)
            if place.absolute != output.absolute and _may_be(place) and is_same(place, digest):
                folders.insert(0, folders.pop(number))  # the next one is likely there too
                return place
        return None

    def _candidates(self, output: Place, name: str) -> Iterator[Place]:
        if not _is_name(name):
            return
        for folder in (output.folder(), output.folder().folder(), *self.look_in):
            yield folder.child(name)


class _Listed(msgspec.Struct):
    digest: str | None = None


class _Certificate(msgspec.Struct):
    """Fields of a certificate that show whether it belongs to an output."""

    output: dict[str, Any]
    lists: list[_Listed]


def _purged(place: Place, manifest: Manifest) -> dict[str, Any]:
    """Return the command `purge` if its certificate of this output exists; side files name the verb that it used."""
    beside = place.beside(CERTIFICATE)
    excluded = manifest.options.get("excluded")
    if not excluded or not beside.exists() or beside.store.size(beside.path) > _MOST_CERTIFICATE_BYTES:
        return {}
    try:
        found = msgspec.json.decode(beside.store.get(beside.path), type=_Certificate)
    except msgspec.DecodeError:
        return {}
    is_of_it = found.output.get("samples") == manifest.num_samples and [one.digest for one in found.lists] == excluded
    return {"command": "purge"} if is_of_it else {}


def _may_be(place: Place) -> bool:
    """Return whether an input may exist at a place, as one or several files."""
    return place.exists() or is_pattern(place.path)


def _is_name(name: str) -> bool:
    """Return whether the name of an input stays in its folder: side files are untrusted."""
    return not any(part in ("", ".", "..") for part in name.split("/"))


def _manifest_at(place: Place) -> Manifest | None:
    """Return the side file that belongs to a dataset; None if there is none, or the format is unknown."""
    if place.is_local and not _may_be(place) and not place.folder().exists():  # web servers have no folders
        raise NotFound("the dataset doesn't exist", path=place.path, hint="Check the path")
    try:
        source: Any = open_source(place.path, excludes=NO_LIST)
        manifest = manifest_of_tars(place.store, source.path) if _raw_of(source) else getattr(source, "manifest", None)
    except NotFound:
        raise
    except PenstockError:
        return None
    return manifest if isinstance(manifest, Manifest) else None


def _raw_of(source: Any) -> WebdatasetSource | None:
    """Return the stored samples of tars; None for other data."""
    raw = getattr(source, "raw", source)
    return raw if isinstance(raw, WebdatasetSource) else None


def is_same(place: Place, digest: str) -> bool:
    """Return whether an input has the digest that a side file recorded."""
    return digest in digests_like(place, digest)


def kind_of(digest: str) -> str:
    """Return the kind of a recorded digest; only digests of one kind can be compared."""
    return digest.partition(":")[0] if ":" in digest else _DATASET


def _may_be_compared(digest: str, found: Sequence[str]) -> bool:
    """Return whether a recorded digest and those found can be compared: versions of a store and hashes can't."""
    return not found or kind_of(digest) in (_DATASET, *map(kind_of, found))


def digests_like(place: Place, digest: str) -> tuple[str, ...]:
    """Return the digests of an input, of the same kind as this one; none if it can't be read."""
    kind = kind_of(digest)
    try:
        if kind == _SAMPLE:
            return (f"{_SAMPLE}:" + sample_fingerprint(place.store, "input", b"", [("", place.path)]),)
        if kind != _DATASET:
            [found] = describe_inputs([place])
            if kind == _WHOLE and kind_of(found.digest) != _WHOLE and found.size_bytes <= WHOLE_DIGEST_BYTES:
                [found] = with_digests([replace(found, digest="")])  # it was on a disk when it was read
            return (found.digest,)
        source = open_source(place.path, excludes=NO_LIST)
        raw = _raw_of(source)  # tars are identified by the stored content of one split
        of_splits = () if raw is None else recorded_fingerprints(place.store, side_path(raw.path)).values()
        return (source.fingerprint, *(() if raw is None else (raw.fingerprint,)), *of_splits)
    except (PenstockError, FileNotFoundError, IsADirectoryError, PermissionError):
        return ()


# --- samples that were made of others --------------------------------------------------------------------------------


_log = logger()

_IN_ORDER = (None, "convert", "merge")
"""Commands that keep the order of all samples, input by input; None: `pack`."""

Sources: TypeAlias = Sequence[tuple[Dataset, IntArray]]
"""Datasets with samples of them. Several files are listed as one dataset and one by one: both may be inputs."""


def documents_made_of(made: Dataset, sources: Sources) -> dict[int, str | None]:
    """Return index → None of the samples of `made` that were made of samples of `sources`.

    Row maps record it. Without them, samples have the same numbers as in all inputs together, if the command keeps
    their order. Datasets in between, such as filtered lines that were packed, are found like those of `lineage`.

    Args:
        made: a dataset.
        sources: at least one of its direct or indirect inputs.

    Raises:
        ConfigError: it isn't recorded.
    """
    return dict.fromkeys(_made_of(made, sources, ()).tolist())


def _made_of(made: Dataset, sources: Sources, above: tuple[str, ...]) -> IntArray:
    """Return int64[k], increasing: the samples of `made`."""
    path, manifest = made.place.path, getattr(stored(made.source), "manifest", None)
    if not isinstance(manifest, Manifest) or not manifest.inputs:
        raise _unknown(path, "no side file records its inputs")
    first = sources[0][0].place
    named = _named(manifest, sources)
    places = {
        one: _found(one, digest, made.place, first) for one, digest in manifest.inputs.items() if one not in named
    }
    rows = named | dict(_between(made, places, sources, above))
    if not rows:
        inputs = ", ".join(manifest.inputs)[:200]
        raise _unknown(path, f"its side file records other inputs, or {first.shown} changed: {inputs}")
    if gone := [one for one, place in places.items() if place is None]:
        what = "%s: missing or changed inputs, which may also contain these samples: %s"
        _log.warning(what, path, ", ".join(gone)[:200])
    row_map = read_row_map(made.place, manifest)
    if row_map is None:
        begins = _begins(made, manifest, {name: len(dataset) for name, (dataset, _) in rows.items()}, places)
        return np.unique(np.concatenate([begins[name] + some for name, (_, some) in rows.items()]))
    numbers = {one.name: number for number, one in enumerate(row_map.inputs)}
    found = [
        row_map.samples_of(numbers[name], _rows_of(dataset, some, row_map.inputs[numbers[name]].rows))
        for name, (dataset, some) in rows.items()
    ]
    return np.unique(np.concatenate(found))


def _named(manifest: Manifest, sources: Sources) -> dict[str, tuple[Dataset, IntArray]]:
    """Return the inputs that are sources, compared by digest, so that a renamed file with the same content counts."""
    found: dict[str, tuple[Dataset, IntArray]] = {}
    for source, indices in sources:
        now: dict[str, tuple[str, ...]] = {}
        for name, digest in manifest.inputs.items():
            if kind_of(digest) not in now:
                now[kind_of(digest)] = digests_like(source.place, digest)
            if digest in now[kind_of(digest)]:
                known = found[name][1] if name in found else indices
                found[name] = source, np.union1d(known, indices)
    return found


def _between(
    made: Dataset, places: Mapping[str, Place | None], sources: Sources, above: tuple[str, ...]
) -> Iterator[tuple[str, tuple[Dataset, IntArray]]]:
    """Yield other inputs that contain sources or were made from them, with the indices of their samples."""
    if len(above) >= MOST_NODES_DEEP or made.place.absolute in above:
        return
    for name, place in places.items():
        if place is None:
            continue
        try:
            dataset = open_dataset(place.path, {})
            held = _held(dataset, sources)
            rows = _made_of(dataset, sources, (*above, made.place.absolute)) if held is None else held
            yield name, (dataset, rows)
        except PenstockError:
            continue  # made from other data, or unknown


def _held(dataset: Dataset, sources: Sources) -> IntArray | None:
    """Return int64[k], increasing: samples of sources in a folder of JSONL files; None if none of them are in it."""
    found = [
        indices + first
        for path, first, stop in files_of_lines(stored(dataset.source))
        for source, indices in sources
        if same_file(path, source.place.path) and len(source) == stop - first
    ]
    return np.unique(np.concatenate(found)) if found else None


def _rows_of(dataset: Dataset, indices: IntArray, num_rows: int) -> IntArray:
    """Return int64[k]: the numbers of samples in a row map, which counts lines that an index leaves out."""
    source: Any = stored(dataset.source)
    return line_numbers(source, indices) if len(dataset) != num_rows and isinstance(source, Lines) else indices


def _begins(
    made: Dataset, manifest: Manifest, known: Mapping[str, int], places: Mapping[str, Place | None]
) -> dict[str, int]:
    """Return input → number of its first sample among all; raise `ConfigError` if they aren't in order."""
    path, command = made.place.path, manifest.options.get("command")
    if command not in _IN_ORDER or "excluded" in manifest.options:
        raise _unknown(path, f"it was made by {command or 'pack'}, which changed the order or skipped samples")
    order: Any = manifest.options.get("sources") if command == "merge" else sorted(manifest.inputs)
    if sorted(order or ()) != sorted(manifest.inputs):
        if len(manifest.inputs) > 1:
            raise _unknown(path, "its side file doesn't record the merge order")
        order = list(manifest.inputs)
    counts = dict(known)
    for name, place in places.items():
        if name not in counts:
            if place is None:
                raise _unknown(path, f"its input {name} is missing or changed")
            counts[name] = len(open_source(place.path, excludes=NO_LIST))
    total = sum(counts.values())
    if total != len(made):
        raise _unknown(path, f"{len(made)} samples from {total}: some produced none or several")
    return dict(zip(order, accumulate((counts[name] for name in order), initial=0), strict=False))


def _found(name: str, digest: str, *near: Place) -> Place | None:
    """Search an input in these places, next to them, and in the folders above."""
    if not _is_name(name):
        return None
    places = (folder.child(name) for one in near for folder in (one, one.folder(), one.folder().folder()))
    return next((one for one in places if one.exists() and is_same(one, digest)), None)


def _unknown(path: str, why: str) -> ConfigError:
    hint = "Exclude by index there (--indices; see `penstock find --text`), or rebuild it with --keep-map"
    return ConfigError("it is unknown which documents were made from these samples", path=path, found=why, hint=hint)
