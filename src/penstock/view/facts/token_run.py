"""Documents or windows as tokens: the text of each id, and the model's inputs for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from penstock.errors import ConfigError

MOST_TOKENS = 4096
"""Limit on the tokens of one request."""

_MOST_TOGETHER = 16
"""Tokens that may be decoded together: a character has four bytes, and a token may end inside the next one."""

_ROW = ("tokens", "inputs", "input_ids")


class Texts(Protocol):
    def bytes_of(self, token: int, /) -> bytes | None:
        """Return the bytes of an id; None for an unknown id."""
        ...


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    Attributes:
        place: position in the document or window, from 0.
        text: text of its bytes; invalid UTF-8 bytes in hex with a backslash; empty without a tokenizer.
        is_text: whether its bytes are UTF-8.
        whole: for bytes that are only text together with the next tokens: the whole text on the first token, empty on
            the others; None for other tokens.
        is_known: whether the tokenizer has this id.
        is_eos: whether it ends a document.
        begins: whether a document begins with it: false for the first token of a window that continues a document.
        segment: number of its document in the window, from 1, 0 for padding; None if unknown.
        position: position in its document, as in the model's input; None if unknown.
        target: target id; None without targets.
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
        """Visible text of the token."""
        return self.text if self.whole is None else self.whole


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Consecutive tokens.

    Attributes:
        tokens: tokens `[start, start + len)`.
        start: position of the first token.
        of: number of tokens in the document or window.
        has_texts: whether a tokenizer is known.
        documents: number of documents in the window, if known; `padding`: number of padding tokens; `counted`: number
            of tokens in the loss.
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
    """Return the tokens of a document, or of one row of a batch.

    Args:
        sample: has `tokens` or `inputs`, and optionally `targets`, `loss_mask`, `segment_ids`, `positions`:
            one-dimensional, of equal length.
        texts: vocabulary, to show their text.
        eos_id: id that ends documents, used without segments.
        documents: `(document, start, stop)` in a window, as in `Location`. Without them the first token of a window
            isn't marked as the beginning of a document.
        start: first shown token.
        most: maximum number of shown tokens, at most 4,096.

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
        _token(
            start + at, one, texts, eos_id, begins[at], {name: row[at] if row else None for name, row in known.items()}
        )
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
    """Return the tokens with texts of characters that span several tokens of one document."""
    made, at = list(run), 0
    while at < len(made):
        count, text = _character(made[at : at + _MOST_TOGETHER], texts)
        for place in range(count):
            made[at + place] = replace(made[at + place], whole="" if place else text)
        at += max(1, count)
    return tuple(made)


def _character(run: Sequence[Token], texts: Texts) -> tuple[int, str]:
    """Return the number of tokens, at least two, that form one text with the first one, and the text; or 0."""
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
    """Return bool[n]: whether a document begins with each token."""
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
    """Return whether the targets are the tokens after `ids`, rather than `ids` themselves."""
    if targets is None:
        return False
    inputs = _column(sample.get("inputs"), len(ids))
    return not np.array_equal(ids, targets) if inputs is None else np.array_equal(ids, inputs)


def _with_last_target(ids: Any, columns: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return inputs and columns with the mask at the predicted token, and the last target if it is trained."""
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
