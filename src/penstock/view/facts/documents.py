"""Tokens of a document of any length, and a sample as it is read, for a look at its tokens."""

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
"""Tokens of a document of which all that count in the loss are counted; of a longer one those that are shown."""


def document_tokens(opened: Opened, index: int, start: int, most: int = MOST_TOKENS) -> tuple[TokenRun, int | None]:
    """Tokens of a document, and how many documents there are.

    Where nothing says where documents begin, all tokens are one document, their number None. Reads what it shows.

    Args:
        opened: a dataset of documents of tokens.
        index: of the document.
        start: the first token that is shown.
        most: tokens that are shown.

    Raises:
        ConfigError: there is no such document.
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
    """Tokens of a document, of all of them for None, and what reads a range of them, with their loss mask.

    Where documents begin is not worked out for one of them, unless that one is too large to be read at once.
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
    """A sample, all of its fields; raises whatever reading it raises.

    Raises:
        ConfigError: there is no such sample.
        TooLarge: it is stored in more bytes than are read at once.
    """
    if not 0 <= index < len(opened):
        raise ConfigError("sample index out of range", found=index, expected=f"0 to {len(opened) - 1:,}")
    return read_whole(opened, index)
