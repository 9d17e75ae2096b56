"""`find`: search the samples of a dataset by key, text or expression."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from penstock._access import place_of
from penstock._keywords import Opening, with_options
from penstock._limits import EXPRESSION_SECONDS
from penstock._secrets import redacted_repr
from penstock.abc import SupportsKeys
from penstock.engine.options import Progress, RunOptions
from penstock.engine.rows import read_run, runs
from penstock.engine.run import open_pool
from penstock.errors import ConfigError, NotFound
from penstock.executors import AnyExecutor
from penstock.formats._opening import skipping_invalid_lines
from penstock.formats._sample_keys import KEY_FIELDS, key_in
from penstock.formats.jsonl.text import Text
from penstock.look.samples import Dataset, Stretch, Target, documents_of, open_dataset, readable, samples_of, stretches
from penstock.reshape.expression import Clock, compile_expression, each_at_most, names_in, require_fields
from penstock.reshape.filter import Fits, holds
from penstock.reshape.rows import LineRows, Lines, fields_of
from penstock.types import Extent

_PRELOAD = ("penstock.look.find",)


@redacted_repr
@dataclass(frozen=True, slots=True)
class Found:
    """Sample found by `find`.

    Attributes:
        index: index in the dataset.
        key: its key, if it has one.
        path: the file that contains it, or the dataset if the file is unknown.
        place: place in that file, such as `"bytes 120-348"` (end not included), or `"bytes 120-348, unpacked"` for
            offsets in decompressed data; None if unknown.
        excluded: whether the sample is on the exclude list.
    """

    index: int
    key: str | None
    path: str
    place: str | None
    excluded: bool = False


@redacted_repr
@dataclass(frozen=True, slots=True)
class FindReport:
    """Result of `find`.

    Attributes:
        found: the samples, ordered by index.
        looked_at: number of samples read: 0 if a key index was used, not all if the limit was reached.
        of: number of samples in the dataset.
    """

    found: tuple[Found, ...]
    looked_at: int
    of: int


@with_options(Opening, strict=True)
def find(
    target: Target,
    *,
    key: str | None = None, text: str | None = None, where: str | None = None, limit: int | None = None,
    key_field: str | None = None, tokenizer: str | None = None,
    format: str | None = None, progress: Progress | None = None, executor: AnyExecutor | None = None,
    workers: int | None = None, **opening: Unpack[Opening],
) -> FindReport:  # fmt: skip
    """Find samples by key, text or expression, in any format. Excluded samples are found too, and marked.

    A key is looked up in the dataset's key index, if there is one. Everything else reads the samples, about 16 MiB at a
    time. Memory: about 100 MB per worker, and 300 bytes per sample found.

    Args:
        target: path, URL, list of JSONL files, or source.
        key: key of a sample; in data without keys, the content of its field `key_field`.
        text: text to search for in all texts of a sample, at any depth. In token documents, it is searched in the text
            that `tokenizer` decodes, without the EOS token.
        where: expression on the fields, as in `penstock.filter`.
        limit: stop after this many matches.
        key_field: field with the key. By default the first of `__key__`, `key`, `id`, `doc_id` and `url` that a sample
            has.
        tokenizer: file or directory of the tokenizer, for token documents.
        format: format of the dataset; detected by default.
        progress: called with the number of samples read and the total.
        executor: how to run the work, as in `penstock.pack`. By default this process.
        workers: number of workers, as in `penstock.pack`.
        opening: options of `penstock.open`.

    Returns:
        A report whose `found` lists the matches with `index`, `key`, `path`, `place` and `excluded`.

    Raises:
        ConfigError: not exactly one of `key`, `text` and `where` is given, the expression is invalid, no sample has the
            field, or token documents don't support the search.
        PrepareError: the expression fails on a sample; the message names it.
        NotFound: there is nothing at `target`.
        FormatError: a sample is damaged.

    Examples:
        >>> import penstock as ps
        >>> report = ps.find("docs.jsonl", text="gate")
        >>> [(match.index, match.key) for match in report.found]
        [(3, 'a4'), (5, 'a6')]
        >>> [match.index for match in ps.find("docs.jsonl", where="lang == 'de'").found]
        [2, 4]
    """
    given = {"key": key, "text": text, "where": where}
    asked = [name for name, value in given.items() if value is not None]
    if len(asked) != 1:
        raise ConfigError(
            "exactly one search condition is needed",
            found=" and ".join(asked) or "nothing",
            expected="one of key (--key), text (--text), where (--where)",
        )
    if limit is not None and limit < 1:
        raise ConfigError("the limit must be positive", found=limit, expected="1 or more")
    if key_field is not None and key is None:
        raise ConfigError("key_field only works with a key", found=key_field, hint="Pass the key, or use where")
    with skipping_invalid_lines():
        dataset = open_dataset(target, {"format": format, **opening}, marks=True)
    wanted = Wanted(key, text, where, key_field, tokenizer)
    wanted.require_possible(dataset)
    if key is not None and key_field is None and isinstance(dataset.source, SupportsKeys):
        with contextlib.suppress(NotFound):
            return FindReport((_found(dataset, dataset.source.index_of(key), key),), 0, len(dataset))
        return FindReport((), 0, len(dataset))
    wanted.require_fields(dataset)
    return _scan(dataset, wanted, limit, RunOptions(executor, workers, progress=progress))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A search condition; see `find`. Picklable."""

    key: str | None
    text: str | None
    where: str | None
    key_field: str | None
    tokenizer: str | None

    def require_possible(self, dataset: Dataset) -> None:
        """Raise `ConfigError` if such data can't be searched in this way."""
        path = dataset.place.path
        if dataset.tokens is None:
            if self.tokenizer is not None:
                raise ConfigError("these samples aren't token documents", path=path, hint="Omit the tokenizer")
            return
        if self.text is None:
            what = "token documents have no keys" if self.where is None else "token documents have no fields"
            hint = "Search for text: --text T --tokenizer FILE (text=, tokenizer=), or search the original data"
            raise ConfigError(what, path=path, hint=hint)
        if self.tokenizer is None:
            hint = "Pass the tokenizer: --tokenizer FILE (tokenizer=)"
            raise ConfigError("searching for text in token documents needs their tokenizer", path=path, hint=hint)

    def require_fields(self, dataset: Dataset) -> None:
        """Raise `ConfigError` if no sample has a field of the condition."""
        paths = names_in(self.where) if self.fits() and self.where is not None else set[tuple[str, ...]]()
        if self.key_field is not None:
            paths = {tuple(self.key_field.split("."))}
        lines = dataset.lines

        def fields_at(index: int) -> Mapping[str, Any]:
            if lines is not None:
                return fields_of(read_run(lines, index, index + 1)[0].tobytes()[:-1], dataset.place, index)
            [(_, [sample])] = samples_of(dataset, index, index + 1)
            return readable(sample)

        require_fields(paths, fields_at, len(dataset), dataset.place)

    def fits(self) -> Fits | None:
        """Return the compiled expression, or raise `ConfigError`."""
        return None if self.where is None else compile_expression(self.where)

    def key_of(self, sample: Mapping[str, Any]) -> str | None:
        """Return the key of a sample as text."""
        return key_in(sample, self.key_field)


def _found(dataset: Dataset, index: int, key: str | None) -> Found:
    place = place_of(dataset.source, index)
    gone = dataset.excluded
    is_gone = gone is not None and bool(np.isin(index, gone, assume_unique=True))
    key = place.key if key is None else key
    return Found(index, key, *_shown(dataset, index, place.extents or ()), is_gone)


def _shown(dataset: Dataset, index: int, extents: tuple[Extent, ...]) -> tuple[str, str | None]:
    """Return the file of the first extent, and the first and last byte in it."""
    here = [one for one in extents if one.path == extents[0].path]
    if here:
        first, stop = (one.offset_bytes for one in here), (one.offset_bytes + one.length_bytes for one in here)
        return here[0].path, f"bytes {min(first)}-{max(stop)}"
    if not isinstance(dataset.source, Lines) or not isinstance(dataset.source.text[0], Text):
        return dataset.place.path, None
    start, length = dataset.source.line_ranges()[index].tolist()
    path, first = dataset.source.text[0].path_at(start)
    return path, f"bytes {first}-{first + length}, unpacked"


# --- reading -------------------------------------------------------------------------------------------------------


Hits = list[tuple[int, str | None]]
"""Index and key of each match."""


def hits_in(dataset: Dataset, wanted: Wanted, start: int, stop: int, limit: int | None = None) -> Hits:
    """Return the first matches in `[start, stop)`, at most `limit`."""
    return _Job(dataset, wanted, limit)(Stretch(start, stop, ""))[0]


class _Job:
    """A search that workers do; each loads the tokenizer once. It ends after `limit` matches in a stretch."""

    __slots__ = ("_decode", "dataset", "limit", "wanted")

    def __init__(self, dataset: Dataset, wanted: Wanted, limit: int | None) -> None:
        self.dataset = dataset
        self.wanted = wanted
        self.limit = limit
        self._decode: Callable[[Any], str] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (_Job, (self.dataset, self.wanted, self.limit))

    def __call__(self, task: Stretch) -> tuple[Hits, bool]:
        """Return the matches in a stretch, and whether any of its samples has a key."""
        hits: Hits = []
        has_keys = False
        for index, key, fits in self._looked_at(task):
            has_keys = has_keys or key is not None
            if fits:
                hits.append((index, key))
                if len(hits) == self.limit:
                    break
        return hits, has_keys

    def _looked_at(self, task: Stretch) -> Iterator[tuple[int, str | None, bool]]:
        """Return index and key of samples, and whether they match; some that don't are left out."""
        dataset, wanted = self.dataset, self.wanted
        lines = dataset.lines
        if dataset.tokens is not None:
            eos_id = dataset.tokens.eos_id
            for start, documents in documents_of(dataset.tokens, task.start, task.stop):
                for index, ids in enumerate(documents, start):
                    is_ended = eos_id is not None and len(ids) > 0 and ids[-1] == eos_id
                    yield index, None, str(wanted.text) in self._text_of(ids[:-1] if is_ended else ids)
        elif wanted.text is not None and lines is not None:
            yield from _lines_with(dataset, lines, wanted, task)
        elif wanted.where is not None:
            yield from _fitting(dataset, wanted, task)
        else:
            for start, samples in samples_of(dataset, task.start, task.stop):
                for index, sample in enumerate(samples, start):
                    key = wanted.key_of(sample)
                    yield index, key, key == wanted.key if wanted.text is None else _has_text(sample, wanted.text)

    def _text_of(self, ids: Any) -> str:
        if self._decode is None:
            from penstock.prepare.tokens.vocabulary import load_decoder  # its packages are only needed for tokens

            self._decode = load_decoder(str(self.wanted.tokenizer))
        return self._decode(ids)


def _fitting(dataset: Dataset, wanted: Wanted, task: Stretch) -> Iterator[tuple[int, str | None, bool]]:
    where = str(wanted.where)
    fits, names = compile_expression(where), {path[0] for path in names_in(where)}
    for start, samples in samples_of(dataset, task.start, task.stop):
        found: list[tuple[int, str | None, bool]] = []
        with each_at_most(EXPRESSION_SECONDS) if "match" in where else contextlib.nullcontext(Clock()) as clock:
            for clock.row, sample in enumerate(samples, start):
                if holds(fits, readable(sample, names), dataset.place, clock.row, dataset.source):
                    found.append((clock.row, wanted.key_of(sample), True))
        yield from found


def _lines_with(
    dataset: Dataset, lines: LineRows, wanted: Wanted, task: Stretch
) -> Iterator[tuple[int, str | None, bool]]:
    """Search lines for a text. Only lines with its usual spelling in JSON, or with an escape, are decoded."""
    text = str(wanted.text)
    spelt = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")[1:-1]
    for at, end in runs(lines, task.start, task.stop):
        data, lengths = read_run(lines, at, end)
        ends = np.cumsum(lengths)
        whole = data.tobytes()
        rows = sorted({int(np.searchsorted(ends, one, side="right")) for one in _offsets(whole, spelt, ends)})
        for row in rows:
            line = whole[int(ends[row] - lengths[row]) : int(ends[row]) - 1]
            sample = fields_of(line, dataset.place, at + row)
            if _has_text(sample, text):
                yield at + row, wanted.key_of(sample), True


def _offsets(data: bytes, spelt: bytes, ends: Any) -> Iterator[int]:
    """Return an offset in each line that contains the text or an escape, at most one of each kind per line."""
    for one in (spelt, rb"\u", rb"\/"):
        at = data.find(one)
        while at >= 0:
            yield at
            at = data.find(one, int(ends[np.searchsorted(ends, at, side="right")]))


def _has_text(value: Any, text: str) -> bool:
    """Return whether a value or one of its parts contains a text; keys of objects are ignored."""
    if isinstance(value, str):
        return text in value
    if isinstance(value, Mapping):
        return any(_has_text(one, text) for one in value.values())
    if isinstance(value, list | tuple):
        return any(_has_text(one, text) for one in value)
    if isinstance(value, bytes):
        if text.encode("utf-8", "surrogatepass") in value:
            with contextlib.suppress(UnicodeDecodeError):  # bytes that contain it by chance
                return text in value.decode()
        return False
    return isinstance(value, np.ndarray) and value.dtype.kind == "U" and any(text in one for one in value.ravel())


def _scan(dataset: Dataset, wanted: Wanted, limit: int | None, options: RunOptions) -> FindReport:
    hits: Hits = []
    looked_at, has_keys, tasks = 0, False, list(stretches(dataset))
    with open_pool(options, _PRELOAD, most=max(1, len(tasks)), reads=dataset.reads) as pool:
        for task, (found, known) in zip(tasks, pool.map(_Job(dataset, wanted, limit), tasks), strict=True):
            hits += found
            has_keys = has_keys or known
            looked_at = task.stop
            if options.progress is not None:
                options.progress(looked_at, f"of {len(dataset):,}")
            if limit is not None and len(hits) >= limit:
                del hits[limit:]
                looked_at = hits[-1][0] + 1
                break
    if wanted.key is not None and not has_keys and len(dataset):
        hint = "Specify the field with --key-field (key_field=), or search for text"
        raise ConfigError(
            "the samples have no keys", path=dataset.place.path, expected=", ".join(KEY_FIELDS), hint=hint
        )
    return FindReport(tuple(_found(dataset, *one) for one in hits), looked_at, len(dataset))
