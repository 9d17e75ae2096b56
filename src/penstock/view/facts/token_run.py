"""A document or a window as tokens: the text of each id, and what the model is told about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from penstock.errors import ConfigError

MOST_TOKENS = 4096
"""Tokens of one look."""

_MOST_TOGETHER = 16
"""Tokens whose bytes are taken together: a character has four bytes, and a token may end inside of the next one."""

_ROW = ("tokens", "inputs", "input_ids")


class Texts(Protocol):
    """A tokenizer's vocabulary, id by id."""

    def bytes_of(self, token: int, /) -> bytes | None:
        """The bytes that an id stands for; None where there is no such id."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        place: in the document or window, from 0.
        id: of it.
        text: of its bytes; a byte that is no UTF-8 on its own as `\\xe2`; empty where no tokenizer is known.
        is_text: whether its bytes are UTF-8.
        whole: of bytes that are none on their own, but are with those of the next tokens: on the first of these the
            text of all of them, on the others empty; None for every other token.
        is_known: whether the tokenizer has this id.
        is_eos: whether it ends a document.
        begins: whether a document begins with it: false for the first token of a window that continues a document.
        segment: which document of the window it belongs to, counted from 1, 0 for padding; None where that is not told.
        position: in its document, as the model is told; None likewise.
        target: the id that the model has to say here; None where there are no targets.
        counts: whether this token is trained as a target; None without a mask. The first token of a window whose
            targets are the next tokens is never a target.
    """

    place: int
    id: int
    text: str
    is_text: bool
    is_known: bool
    is_eos: bool
    begins: bool
    segment: int | None
    position: int | None
    target: int | None
    counts: bool | None
    whole: str | None = None

    @property
    def reads(self) -> str:
        """What a reader of the text sees of it."""
        return self.text if self.whole is None else self.whole


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens in a row.

    Attributes:
        tokens: of `[start, start + len)`.
        start: place of the first one.
        of: how many there are in the document or window.
        field: which field of the sample the ids are of.
        has_texts: whether texts are known.
        documents: how many documents the whole window holds, where it tells; `padding`: how many of its places are
            none; `counted`: how many count in the loss.
        is_shifted: whether the targets are the next tokens, so that the mask of each place is for the next token. If
            the last target is trained, it follows the inputs as one more token.
    """

    tokens: tuple[Token, ...]
    start: int
    of: int
    field: str
    has_texts: bool
    documents: int | None
    padding: int | None
    counted: int | None
    is_shifted: bool = False


def tokens(
    sample: Mapping[str, Any],
    *,
    texts: Texts | None = None,
    eos_id: int | None = None,
    documents: Sequence[Sequence[int]] | None = None,
    start: int = 0,
    most: int = MOST_TOKENS,
) -> TokenRun:
    """The tokens of a document, or of one row of a batch.

    Args:
        sample: with `tokens` or `inputs`, and as far as they are there `targets`, `loss_mask`, `segment_ids`,
            `positions`: one-dimensional, of one length.
        texts: to show their text.
        eos_id: that ends documents, where no segments tell.
        documents: `(document, start, stop)` of a window, as in `Location`. Without them the first token of a window
            isn't marked as the beginning of a document.
        start: the first token that is shown.
        most: tokens that are shown, at most 4,096.

    Raises:
        ConfigError: the sample has no tokens.
    """
    field = next((name for name in _ROW if name in sample and np.ndim(sample[name]) == 1), None)
    if field is None:
        raise ConfigError("this sample has no tokens", found=", ".join(map(str, list(sample)[:8])) or "no field")
    ids = np.asarray(sample[field])
    columns: dict[str, Any] = {
        name: _column(sample.get(name), len(ids)) for name in ("targets", "loss_mask", "segment_ids", "positions")
    }
    num_inputs, is_shifted = len(ids), _are_shifted(ids, sample, columns["targets"])
    if is_shifted and columns["loss_mask"] is not None:
        ids, columns = _with_last_target(ids, columns)
    start = min(max(0, start), len(ids))
    stop = min(len(ids), start + max(1, min(most, MOST_TOKENS)))
    segments, mask = columns["segment_ids"], columns["loss_mask"]
    begins = _begins(ids, columns, eos_id, documents)[start:stop].tolist()
    known = {name: None if one is None else one[start:stop].tolist() for name, one in columns.items()}
    made = tuple(
        _token(start + at, one, texts, eos_id, begins[at], {name: _at(row, at) for name, row in known.items()})
        for at, one in enumerate(ids[start:stop].tolist())
    )
    if made and made[-1].place == num_inputs:
        made = (*made[:-1], replace(made[-1], target=None))
    if texts is not None:
        made = _together(made, texts)
    return TokenRun(
        tokens=made,
        start=start,
        of=len(ids),
        field=field,
        has_texts=texts is not None,
        documents=None if segments is None else len(np.unique(segments[segments != 0])),
        padding=None if segments is None else int((segments == 0).sum()),
        counted=None if mask is None else int(np.count_nonzero(mask)),
        is_shifted=is_shifted,
    )


def _token(
    place: int, token: int, texts: Texts | None, eos_id: int | None, begins: bool, known: Mapping[str, Any]
) -> Token:
    data = None if texts is None else texts.bytes_of(token)
    text, is_text = _readable(data or b"")
    mask = known["loss_mask"]
    return Token(
        place=place,
        id=token,
        text=text,
        is_text=is_text,
        is_known=texts is None or data is not None,
        is_eos=eos_id is not None and token == eos_id,
        begins=begins,
        segment=known["segment_ids"],
        position=known["positions"],
        target=known["targets"],
        counts=None if mask is None else bool(mask),
    )


def _together(run: tuple[Token, ...], texts: Texts) -> tuple[Token, ...]:
    """The same with the texts of characters that are several tokens each; no document goes on in the next one."""
    made, at = list(run), 0
    while at < len(made):
        count, text = _character(made[at : at + _MOST_TOGETHER], texts)
        for place in range(count):
            made[at + place] = replace(made[at + place], whole="" if place else text)
        at += max(1, count)
    return tuple(made)


def _character(run: Sequence[Token], texts: Texts) -> tuple[int, str]:
    """How many tokens, at least two, are a text together that the first one alone is not; 0 for none."""
    data = b""
    for place, one in enumerate(run):
        if (
            (place == 0 and one.is_text)
            or not one.is_known
            or (place and (one.begins or one.is_eos or one.segment != run[0].segment))
        ):
            return 0, ""
        data += texts.bytes_of(one.id) or b""
        text, is_text = _readable(data)
        if is_text:
            return place + 1, text
    return 0, ""


def _readable(data: bytes) -> tuple[str, bool]:
    try:
        return data.decode(), True
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace"), False


def _begins(ids: Any, columns: Mapping[str, Any], eos_id: int | None, documents: Sequence[Sequence[int]] | None) -> Any:
    """bool[n]: whether a document begins with each token."""
    found = np.zeros(len(ids), np.bool_)
    segments = columns["segment_ids"]
    if segments is not None:
        found[0:1] = segments[0:1] != 0
        found[1:] = (segments[1:] != segments[:-1]) & (segments[1:] != 0)
    elif eos_id is not None:
        found[0:1] = True
        found[1:] = ids[:-1] == eos_id
    else:
        found[0:1] = True
    if documents is not None:
        places = np.cumsum([0, *(stop - start for _, start, stop in documents)])[:-1]
        continued = places[[start > 0 for _, start, _ in documents]] if len(documents) else places
        found[continued[continued < len(ids)]] = False
    elif segments is not None or columns["targets"] is not None:
        found[0:1] = False
    return found


def _are_shifted(ids: Any, sample: Mapping[str, Any], targets: Any) -> bool:
    """Whether the targets are the tokens after `ids`, rather than `ids` themselves."""
    if targets is None:
        return False
    inputs = _column(sample.get("inputs"), len(ids))
    return not np.array_equal(ids, targets) if inputs is None else np.array_equal(ids, inputs)


def _with_last_target(ids: Any, columns: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The inputs and their columns with the mask at the token that it is for, and the last target if it is trained."""
    mask = columns["loss_mask"]
    masks = np.concatenate((np.zeros(1, mask.dtype), mask))
    if not mask[-1:].any():
        return ids, {**columns, "loss_mask": masks[: len(ids)]}
    longer = {name: None if one is None else np.concatenate((one, one[-1:])) for name, one in columns.items()}
    if longer["positions"] is not None:
        longer["positions"][-1] += 1
    return np.concatenate((ids, columns["targets"][-1:])), {**longer, "loss_mask": masks}


def _column(value: Any, length: int) -> Any:
    if value is None:
        return None
    column = np.asarray(value)
    return column if column.shape == (length,) else None


def _at(row: list[Any] | None, place: int) -> Any:
    return None if row is None else row[place]
