"""Outputs of commands on whole datasets: writers, their options, and reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock._kinds import TokenParts
from penstock._secrets import redacted_repr
from penstock.abc import SupportsRuns, Writer
from penstock.engine.plan import PlannedInput
from penstock.engine.rows import StoredRows, read_run, runs, total_units
from penstock.errors import ConfigError, Corrupt, PenstockError, Unsupported
from penstock.formats import files_at, formats_of_name, get_format
from penstock.formats._exclusions import whole_of
from penstock.formats._sources import certain_eos
from penstock.reshape.rows import LineRows, SampleRows, TokenRows
from penstock.reshape.sidecars import RowNumbers, Sidecars, planes_in, require_place_of_planes
from penstock.store.dry import dry_place
from penstock.store.outputs import require_other, require_other_name
from penstock.store.place import Place, distinct_names
from penstock.store.unfinished import Once
from penstock.types import Batch, IntArray, Manifest, OpenOptions, Sample


def once_dataset(
    place: Place,
    format: str,
    what: dict[str, Any],
    made_by: Mapping[str, Any],
    num_samples: int | None = None,
    side_file: Callable[[], Manifest | None] | None = None,
) -> Once[Manifest]:
    """Return the job that makes a dataset; after a kill its side file identifies it.

    Args:
        place: the output.
        format: its format.
        what: everything that determines its bytes, as plain JSON.
        made_by: command and options, as its side file records them if the format does.
        num_samples: number of samples, if known.
        side_file: reads the side file that fits the data; by default that of the opened dataset.
    """

    def of_source() -> Manifest | None:
        source = get_format(format).open(place.store, place.path, OpenOptions())
        manifest = getattr(source, "manifest", None)
        return manifest if isinstance(manifest, Manifest) else None

    def published(_told: Any) -> Manifest | None:
        try:
            manifest = (side_file or of_source)()
        except (PenstockError, OSError):
            return None
        if manifest is None or manifest.format != format:
            return None
        known = [manifest.options[name] == value for name, value in made_by.items() if name in manifest.options]
        return manifest if num_samples in (None, manifest.num_samples) and all(known) else None

    return Once(place.store, place.path, what, files_at(format, place.path), published)


def once_parts(beside: Place, what: dict[str, Any], parts: Sequence[Once[Manifest]]) -> Once[tuple[Manifest, ...]]:
    """Return the job that makes several datasets, one after another; its mark is at `beside`."""

    def published(_told: Any) -> tuple[Manifest, ...] | None:
        found = tuple(one.published(None) for one in parts)
        known = tuple(one for one in found if one is not None)
        return known if len(known) == len(found) else None

    return Once(beside.store, beside.path, what, [file for one in parts for file in one.files], published)


class RowlessWriter:
    """A writer that ignores rows: of an output that is already visible, or whose commit copies whole files."""

    def __init__(self, commit: Callable[[], Manifest], close: Callable[[], None] = lambda: None) -> None:
        self.commit = commit
        self._close = close

    def write_run(self, data: NDArray[Any], lengths: IntArray, /) -> None: ...

    def write(self, sample: Sample, /) -> None: ...

    def write_batch(self, batch: Batch, /) -> None: ...

    def abort(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._close()


_NEWLINE = 0x0A
_PART_BYTES = 1 << 26


@redacted_repr
@dataclass(frozen=True, slots=True)
class Written:
    """Dataset that was written.

    Attributes:
        path: path of the dataset.
        format: its format.
        samples: number of documents or lines in it.
        tokens: number of tokens in it; None for lines.
        size_bytes: bytes of its data.
        part: `(i, n)` if this was part i of a distributed job; counts are then those of the part.
        missing: parts that aren't done, with `no_work`; nothing was committed then.
        was_complete: the output was already complete.
        excluded: samples of the sources skipped because of their exclude lists.
    """

    path: str
    format: str
    samples: int
    tokens: int | None
    size_bytes: int
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    was_complete: bool = False
    excluded: int = 0

    @classmethod
    def of(cls, place: Place, manifest: Manifest, excluded: int = 0) -> Written:
        counts = (manifest.num_samples, manifest.num_tokens, manifest.size_bytes)
        return cls(place.path, manifest.format, *counts, excluded=excluded)


@dataclass(frozen=True, slots=True)
class Output:
    """An output dataset.

    Attributes:
        place: its path.
        to: format; None: that of the path's suffix, else that of the first source.
        token_bytes: width of the ids; None: that of the sources.
        mix_tokenizers: accept sources with different tokenizers.
        reads: other files that the job reads, such as a list of indices.
        what: what else determines the bytes, as plain JSON, but isn't in the side file.
    """

    place: Place
    to: str | None = None
    token_bytes: int | None = None
    mix_tokenizers: bool = False
    reads: Sequence[Place] = ()
    what: Mapping[str, Any] = field(default_factory=dict[str, Any])


def sidecars_of(
    output: Output,
    sources: Sequence[StoredRows],
    made_by: Mapping[str, Any],
    rows: RowNumbers | None,
    *,
    keep_map: bool,
) -> Sidecars:
    """Return the sidecars of an output. `rows` gives the numbers of its rows once they are written."""
    known = lineage(sources, made_by)
    if isinstance(sources[0], TokenRows):
        known |= {
            "tokenizer_digest": _token_options([one for one in sources if isinstance(one, TokenRows)], output)[
                "tokenizer_digest"
            ]
        }
    return Sidecars(output.place, format_for(output, sources), sources, known, rows or (lambda: ()), keep_map)


def rehearse(output: Output, sources: Sequence[StoredRows], made_by: Mapping[str, Any], *, overwrite: bool) -> None:
    """Raise what opening a writer raises, without writing."""
    open_writer(replace(output, place=dry_place(output.place)), sources, made_by, overwrite=overwrite).abort()


def once_of(
    output: Output, sources: Sequence[StoredRows], made_by: Mapping[str, Any], num_samples: int | None = None
) -> Once[Manifest]:
    """Return the job that makes an output; raises `ConfigError` for options that don't apply to such rows."""
    _require_own_options(output, sources)
    what: dict[str, Any] = {
        **made_by,
        **output.what,
        "to": format_for(output, sources),
        "sources": list(map(_known_by, sources)),
    }
    what |= {"token_bytes": output.token_bytes, "mix_tokenizers": output.mix_tokenizers}
    return once_dataset(output.place, what["to"], what, made_by, num_samples)


def _require_own_options(output: Output, sources: Sequence[StoredRows]) -> None:
    asked = {"token_bytes": output.token_bytes, "mix_tokenizers": output.mix_tokenizers or None}
    given = ", ".join(name for name, value in asked.items() if value is not None)
    if given and not isinstance(sources[0], TokenRows):
        what = "the rows aren't token documents"
        raise ConfigError(what, path=sources[0].place.path, found=given, hint="Omit it")


def _known_by(rows: StoredRows) -> list[Any]:
    """Return path, size and fingerprint of rows."""
    content = rows.source.fingerprint if isinstance(rows, TokenRows) else None
    known = [rows.place.shown, len(rows), total_units(rows), content]
    return [*known, rows.excluded.listed.digest] if len(rows.excluded) else known


def open_writer(
    output: Output, sources: Sequence[StoredRows], made_by: Mapping[str, Any], *, overwrite: bool = False
) -> Writer:
    """Return a writer for rows of `sources`.

    Raises:
        ConfigError: the output exists or is an input; sources of different widths, tokenizers or EOS ids.
        Unsupported: the format can't hold these rows.
    """
    options = writer_options(output, sources, made_by)
    chosen = get_format(format_for(output, sources))
    return chosen.create(output.place.store, output.place.path, options, overwrite=overwrite)


def writer_options(output: Output, sources: Sequence[StoredRows], made_by: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a writer for rows of `sources`; raises as `open_writer`, except for an existing output."""
    _require_own_options(output, sources)
    other = next((rows for rows in sources if type(rows) is not type(sources[0])), None)
    if other is not None:
        what = f"{sources[0].format} and {other.format} can't be combined"
        raise ConfigError(what, path=other.place.path, hint="Convert or pack one of them first")
    samples = [rows for rows in sources if isinstance(rows, SampleRows)]
    if samples:
        return _sample_options(output, samples, made_by)
    documents = [rows for rows in sources if isinstance(rows, TokenRows)]
    chosen = get_format(format_for(output, sources))
    holds = chosen.traits.tokens if documents else chosen.name == sources[0].format
    if not (chosen.traits.write and holds):
        what = "token documents" if documents else "lines"
        packs = chosen.traits.tokens and not documents
        instead = "`penstock pack` converts text to tokens" if packs else "Choose one with --to (to=)"
        if documents and chosen.traits.tokens:  # its source's: a folder of token files, or what is only read
            as_source = " like its source" if chosen.name == sources[0].format else ""
            what = f"{made_by.get('command', 'this')} writes one file, not {chosen.name}{as_source}"
            hint = "Set a format with a suffix or --to (to=), such as pbin. `penstock convert` turns it into a folder"
            raise Unsupported(what, path=output.place.path, hint=hint)
        raise Unsupported(f"the format {chosen.name!r} can't hold {what}", path=output.place.path, hint=instead)
    require_other_dataset(sources, output.place, chosen.name, output.reads)
    if planes := planes_in(sources):
        require_place_of_planes(output.place, chosen.name, planes)
    options = _token_options(documents, output) if documents else dict[str, Any]()
    return options | (lineage(sources, made_by) if documents or chosen.name == "jsonl" else {})


def lineage(sources: Sequence[StoredRows], made_by: Mapping[str, Any]) -> dict[str, Any]:
    """Return `inputs` and `options`, which the side file records for `penstock lineage`."""
    names = distinct_names([rows.place for rows in sources])
    inputs = {
        name: whole_of(rows.source).fingerprint
        for name, rows in zip(names, sources, strict=True)
        if rows.source is not None
    }
    lists = [rows.excluded.listed.digest for rows in sources if len(rows.excluded)]
    return {"inputs": inputs, "options": {**made_by, "excluded": lists} if lists else dict(made_by)}


def excluded_in(sources: Sequence[StoredRows]) -> int:
    return sum(rows.num_excluded for rows in sources)


def require_other_dataset(inputs: Sequence[StoredRows], output: Place, name: str, reads: Sequence[Place] = ()) -> None:
    """Raise `ConfigError` if an output of the format `name` is one of the inputs, or part of one."""
    files = [file for rows in inputs for file in files_at(rows.format, rows.place.path)]
    require_other([*files, *(one.path for one in reads)], output.path, *files_at(name, output.path))
    require_other_name((rows.place.path for rows in inputs), output.path)


def _sample_options(output: Output, sources: Sequence[SampleRows], made_by: Mapping[str, Any]) -> dict[str, Any]:
    first = sources[0]
    require_other_dataset(sources, output.place, first.format, output.reads)
    for rows in sources:
        if (rows.format, rows.writer_options()["columns"]) != (first.format, first.writer_options()["columns"]):
            raise ConfigError("samples with different columns", path=rows.place.path, hint="Convert one of them first")
    if output.to not in (None, first.format):
        what = f"samples of {first.format} are copied unchanged"
        raise Unsupported(
            what, path=output.place.path, found=f"--to {output.to}", hint="Use `penstock convert` before or after it"
        )
    return first.writer_options() | lineage(sources, made_by)


def append_rows(
    writer: Writer, rows: StoredRows, first: int, stop: int, width: int, advance: Callable[[int], None]
) -> None:
    """Append rows `[first, stop)`; the kernel copies tokens that a file holds as the writer stores them.

    `width`: token width of the writer in bytes. `advance` is called with the number of rows after each run.
    """
    run = rows.token_run() if isinstance(rows, TokenRows) else None
    if run is None or rows.dtype.itemsize != width or not isinstance(writer, TokenParts):
        for at, end in runs(rows, first, stop):
            data, lengths = read_run(rows, at, end)
            write_rows(writer, rows, data, lengths)
            advance(end - at)
        return
    for at, end in runs(rows, first, stop, _PART_BYTES):
        rows.prove(at, end)
        starts, lengths = rows.ranges(slice(at, end))
        writer.write_part(run.path, run.offset_bytes + int(starts[0]) * width, lengths, None)
        advance(end - at)


def write_rows(
    writer: Writer, source: StoredRows, data: NDArray[Any], lengths: IntArray, place: Place | None = None
) -> None:
    """Append rows of a source.

    Args:
        writer: a writer of `open_writer`.
        source: the source of the rows, or one of several.
        data: any[n_units]: the rows back to back.
        lengths: int64[k], in units.
        place: for errors; None: that of `source`.

    Raises `Corrupt` if a line doesn't end at the offset in its index.
    """
    require_whole(source, data, lengths, place)
    if isinstance(writer, SupportsRuns):
        writer.write_run(data, lengths)
    else:
        writer.write_batch({"tokens": np.split(data, np.cumsum(lengths)[:-1])})


def require_whole(source: StoredRows, data: NDArray[Any], lengths: IntArray, place: Place | None = None) -> None:
    """Raise `Corrupt` if rows are lines and don't end as lines do."""
    if isinstance(source, LineRows):
        at = place or source.place
        wrong = np.flatnonzero(data[np.cumsum(lengths) - 1] != _NEWLINE)
        if len(wrong):
            raise Corrupt(
                "the index has an entry that is not a whole line",
                path=at.path,
                found=f"{len(wrong)} of {len(lengths)} lines",
                hint=f"Rebuild it: `penstock index {at.path} --overwrite`",
            )


def format_for(output: Output, sources: Sequence[StoredRows]) -> str:
    first = sources[0]
    if isinstance(first, SampleRows):
        return first.format
    return output.to or _format_of(output.place, is_tokens=isinstance(first, TokenRows)) or first.format


_OTHER_SUFFIXES = {".csv": ("csv", "xsv"), ".tsv": ("tsv", "xsv"), ".tar": ("webdataset",), ".yaml": (), ".yml": ()}
"""Suffixes that formats don't list → the formats whose outputs may have them."""


def require_fitting_suffix(output: Place, written: str) -> None:
    """Raise `ConfigError` if an output has the suffix of another format than the one written."""
    name = output.path.rstrip("/")
    fitting: dict[str, Sequence[str]] = {}
    for known in formats_of_name(name):
        for suffix in get_format(known).traits.suffixes:
            if name.endswith(suffix):
                fitting[suffix] = (*fitting.get(suffix, ()), known)
    plain = re.sub(r"\.(gz|zst|bz2|xz)$", "", name.lower())
    fitting = fitting or {suffix: some for suffix, some in _OTHER_SUFFIXES.items() if plain.endswith(suffix)}
    for suffix, formats in fitting.items():
        if written not in formats:
            usual = next(iter(get_format(written).traits.suffixes), "")
            expected = f"a name such as {re.sub(re.escape(suffix) + '.*', '', output.name, flags=re.IGNORECASE)}{usual}"
            hint = "Choose another name, or change the format with `penstock convert` first"
            what = f"the output is written as {written}, but its suffix is that of another format"
            raise ConfigError(what, path=output.path, found=suffix, expected=expected, hint=hint)


def _format_of(place: Place, *, is_tokens: bool) -> str | None:
    """Return the format of a path's suffix; of several, one that holds such rows."""
    fitting = list(map(get_format, formats_of_name(place.path)))
    fitting.sort(key=lambda one: one.traits.tokens != is_tokens)
    return fitting[0].name if fitting else None


def _token_options(sources: Sequence[TokenRows], output: Output) -> dict[str, Any]:
    manifests = [_manifest_of(rows) for rows in sources]
    digests = [None if one is None else one.tokenizer_digest for one in manifests]
    names = [None if one is None else one.tokenizer for one in manifests]
    eos_ids = [certain_eos(rows.source, rows.place.path) for rows in sources]
    if not output.mix_tokenizers:
        _require_one(sources, digests, "sources with different tokenizers", names)
        _require_one(sources, eos_ids, "sources with different EOS ids", eos_ids)

    return {
        "token_bytes": _width(sources, output),
        "eos_id": _common(eos_ids),
        "tokenizer": _common(names),
        "tokenizer_digest": _common(digests),
    }


def _require_one(sources: Sequence[TokenRows], values: Sequence[Any], what: str, shown: Sequence[Any]) -> None:
    known = [i for i, value in enumerate(values) if value is not None]
    for i in known:
        if values[i] != values[known[0]]:
            raise ConfigError(
                what,
                path=sources[i].place.path,
                found=shown[i],
                expected=f"{shown[known[0]]}, as in {sources[known[0]].place.path}",
                hint="Combine them anyway with --mix-tokenizers (mix_tokenizers=True)",
            )


def _common(values: Sequence[Any]) -> Any:
    """Return the value that all have; None if they differ or one is unknown."""
    return values[0] if all(value == values[0] for value in values) else None


def _width(sources: Sequence[TokenRows], output: Output) -> int:
    widths = [rows.dtype.itemsize for rows in sources]
    width = output.token_bytes or widths[0]
    for rows, found in zip(sources, widths, strict=True):
        if found != width if output.token_bytes is None else found > width:
            raise ConfigError(
                "different token widths" if output.token_bytes is None else "tokens can't be made narrower",
                path=rows.place.path,
                found=f"{found} bytes",
                expected=f"{width} bytes" if output.token_bytes is None else f"at most {width} bytes",
                hint=f"Widen them all: --token-bytes {max(widths)} (token_bytes={max(widths)})",
            )
    return width


def _manifest_of(rows: TokenRows) -> Manifest | None:
    manifest = getattr(rows.source, "manifest", None)
    return manifest if isinstance(manifest, Manifest) else None


# --- plans ---------------------------------------------------------------------------------------------------------


def planned_options(
    outputs: Sequence[Output], sources: Sequence[StoredRows], made_by: Mapping[str, Any], *, overwrite: bool
) -> dict[str, Any]:
    options = {f"--{name}": value for name, value in made_by.items()}
    options["--to"] = format_for(outputs[0], sources)
    options["--overwrite"] = overwrite
    options["outputs"] = [output.place.name for output in outputs]
    return options | {f"--{name}": value for name, value in outputs[0].what.items() if f"--{name}" not in options}


def planned_inputs(sources: Sequence[StoredRows]) -> tuple[PlannedInput, ...]:
    names = distinct_names([rows.place for rows in sources])
    if len(set(names)) < len(names):  # a source may be given twice
        names = [f"{number}: {name}" for number, name in enumerate(names)]
    return tuple(map(_planned, names, sources))


def _planned(name: str, rows: StoredRows) -> PlannedInput:
    known = str(rows.source.fingerprint) if rows.source is not None else ""
    left_out = f", without what {rows.excluded.listed.digest} excludes" if len(rows.excluded) else ""
    return PlannedInput(name, total_units(rows) * rows.dtype.itemsize, known + left_out)


def published(
    output: Output, sources: Sequence[StoredRows], made_by: Mapping[str, Any], once: Once[Manifest]
) -> Manifest | None:
    """Return the side file of an output that exists and is the one of this job."""
    known, told = once.published(None), lineage(sources, made_by)
    if known is None or dict(known.inputs) != told["inputs"]:
        return None
    # `once` passes over what is not recorded: one source is not, nor that nothing is excluded.
    fits = all(known.options.get(name) == told["options"].get(name) for name in ("excluded", "sources"))
    return known if fits else None
