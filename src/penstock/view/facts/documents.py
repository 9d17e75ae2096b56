"""Tokens of a document of any length, and whole samples for a look at their tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._planes import LOSS_MASK, planes_of
from penstock.errors import ConfigError, TooLarge
from penstock.view.facts.figures import at_hand
from penstock.view.facts.opening import Opened
from penstock.view.facts.samples import read_whole
from penstock.view.facts.token_run import MOST_TOKENS, TokenRun, tokens

_MOST_COUNTED = 1 << 22
"""Limit on the tokens of a document in which all trained tokens are counted; in longer ones only the shown tokens."""


def document_tokens(opened: Opened, index: int, start: int, most: int = MOST_TOKENS) -> tuple[TokenRun, int | None]:
    """Return tokens of a document, and the number of documents.

    Without document borders, all tokens are one document, and the number is None. Reads only the shown tokens.

    Raises:
        ConfigError: the document doesn't exist.
    """
    source: Any = opened.source
    try:
        count = len(source)
    except ConfigError:
        count = None
    if count is not None and not 0 <= index < count:
        raise ConfigError("document index out of range", found=index, expected=f"0 to {count - 1:,}")
    length, read = _document(opened, None if count is None else index)
    start = min(max(0, start), length)
    stop = min(length, start + min(most, MOST_TOKENS))
    run = tokens(read(start, stop), texts=opened.vocabulary, eos_id=source.eos_id, most=most)
    if run.counted is not None and length <= _MOST_COUNTED:
        run = dataclasses.replace(run, counted=int(np.count_nonzero(read(0, length)[LOSS_MASK])))
    shown = tuple(
        dataclasses.replace(one, place=start + one.place, begins=one.begins and start + one.place == 0)
        for one in run.tokens
    )
    return dataclasses.replace(run, tokens=shown, start=start, of=length), count


def _document(opened: Opened, index: int | None) -> tuple[int, Callable[[int, int], dict[str, Any]]]:
    """Return the number of tokens of a document (None: of all), and a reader of ranges with their loss mask.

    Document borders aren't computed for a single document unless it is too large to be read at once.
    """
    source: Any = opened.source
    begin, end = 0, 0
    if index is None:
        end = source.num_tokens
    else:
        starts = at_hand(lambda: source.doc_starts, opened.size_bytes)
        if starts is None:
            try:
                found = raw_sample(opened, index)
                fields = [name for name in ("tokens", LOSS_MASK) if name in found]
                return len(found["tokens"]), lambda start, stop: {name: found[name][start:stop] for name in fields}
            except TooLarge:
                starts = source.doc_starts
        begin, end = map(int, starts[index : index + 2])
    mask = planes_of(source).get(LOSS_MASK)

    def read(start: int, stop: int) -> dict[str, Any]:
        columns = {"tokens": source.tokens(begin + start, begin + stop)}
        return columns if mask is None else columns | {LOSS_MASK: mask.read(begin + start, begin + stop)}

    return end - begin, read


def raw_sample(opened: Opened, index: int) -> dict[str, Any]:
    """Return a sample with all of its fields; raises any error of reading it.

    Raises:
        ConfigError: the sample doesn't exist.
        TooLarge: the sample is stored in more bytes than are read at once.
    """
    if not 0 <= index < len(opened):
        raise ConfigError("sample index out of range", found=index, expected=f"0 to {len(opened) - 1:,}")
    return read_whole(opened, index)
