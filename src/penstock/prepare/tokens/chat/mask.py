"""Loss masks of conversations, and EOS tokens at their ends.

A token is generated if it overlaps a generated span of the text. Text is tokenized as a whole and without the special
tokens of a post-processor, as transformers does for chat templates. A token whose characters a tokenizer trimmed away
is placed at the last of them.

The tokenizer's own library knows the characters of each token. gigatoken doesn't, but the ids of a byte-level tokenizer
stand for all bytes of a text in order, so the lengths of their texts add up to offsets. A text whose lengths don't add
up is encoded by the library.

A model learns to stop from the token that ends its answers. Templates write one, such as `<|im_end|>`, or none. So an
appended EOS token is trained on only if the answer has no end token of its own.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PrepareError
from penstock.prepare.tokens.chat.template import Spans
from penstock.prepare.tokens.engines import Encoded, Engine, TokenizersEngine, find_difference
from penstock.prepare.tokens.vocabulary import TokenTable
from penstock.types import IntArray

_SPACE = b" "


def encode_spans(
    engine: TokenizersEngine, texts: Sequence[bytes], spans: Sequence[Spans]
) -> tuple[Encoded, NDArray[np.bool_]]:
    """Return ids and lengths of texts, and bool[n_ids]: whether a token overlaps a generated span."""
    encoded, offsets = engine.encode_with_offsets(texts)
    masks = [np.empty(0, np.bool_)]
    for one, generated in zip(offsets, spans, strict=True):
        starts = one[:, 0] - ((one[:, 0] == one[:, 1]) & (one[:, 0] > 0))
        masks.append(_overlaps(starts, np.maximum(one[:, 1], starts + 1), np.array(generated, np.int64).reshape(-1, 2)))
    return encoded, np.concatenate(masks)


def encode_spans_by_bytes(
    engine: Engine, vocabulary: TokenTable, reference: Any, texts: Sequence[bytes], spans: Sequence[Spans]
) -> tuple[Encoded, NDArray[np.bool_]]:
    """Return the same as `encode_spans` from an engine without offsets.

    `reference` returns the tokenizer's own library, which is loaded only if a text needs it.

    Raises:
        PrepareError: the engines encode a text differently.
    """
    if vocabulary.text_bytes is None:
        raise ValueError("the bytes of this tokenizer's ids are unknown")
    ids, lengths = engine.encode(texts)
    if not len(ids):
        return (ids, lengths), np.empty(0, np.bool_)
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    text_starts = np.cumsum(sizes) - sizes
    widths = vocabulary.text_bytes[ids]
    ends = np.cumsum(widths)
    token_stops = np.cumsum(lengths)
    before = np.concatenate([[0], ends])[token_stops - lengths]
    is_whole = np.concatenate([[0], ends])[token_stops] - before == sizes
    ends += np.repeat(text_starts - before, lengths)
    starts = ends - widths
    if not is_whole.all():  # such rows are encoded again below; they only keep their place here
        for array in (starts, ends):
            np.clip(array, np.repeat(text_starts, lengths), np.repeat(text_starts + sizes, lengths), out=array)
    generated = np.concatenate(
        [np.empty((0, 2), np.int64)]
        + [_in_bytes(text, one) + start for text, one, start in zip(texts, spans, text_starts, strict=True) if one]
    )
    if vocabulary.trims:
        _trim(b"".join(texts), starts, ends, generated.reshape(-1))
    mask = np.zeros(len(ids), np.bool_)
    firsts, stops = np.searchsorted(ends, generated[:, 0], "right"), np.searchsorted(starts, generated[:, 1], "left")
    for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
        mask[first:stop] = True
    for row, text in enumerate(texts):
        form = vocabulary.form
        is_normal = form is None or text.isascii() or unicodedata.is_normalized(form, text.decode())
        if not is_whole[row] or not is_normal:
            part = slice(token_stops[row] - lengths[row], token_stops[row])
            expected, of_row = encode_spans(reference(), [text], [spans[row]])
            difference = find_difference([text], (ids[part], lengths[row : row + 1]), expected)
            if difference is not None:
                raise PrepareError(
                    f"gigatoken and the tokenizer's own library disagree on a conversation, {difference}",
                    hint="Encode everything with the reference: --engine tokenizers --restart",
                )
            mask[part] = of_row
    return (ids, lengths), mask


def find_mask_difference(
    engine: Engine, vocabulary: TokenTable, reference: TokenizersEngine, texts: Sequence[bytes]
) -> str | None:
    """Return how the two ways to make masks differ, for spans all over some texts; None if they agree."""
    spans: list[Spans] = [
        [(at, at + 3) for at in range(row % 5, len(text.decode()) - 3, 7)] for row, text in enumerate(texts)
    ]
    try:
        found = encode_spans_by_bytes(engine, vocabulary, lambda: reference, texts, spans)
    except PrepareError as error:
        return str(error.what)
    (ids, _), mask = encode_spans(reference, texts, spans)
    if np.array_equal(found[0][0], ids) and np.array_equal(found[1], mask):
        return None
    return "its ids can't be mapped to characters"


def _overlaps(starts: IntArray, ends: IntArray, generated: IntArray) -> NDArray[np.bool_]:
    """Return whether `[start, end)` overlaps one of the spans int64[n, 2], which are disjoint and rising."""
    begun = np.searchsorted(generated[:, 0], ends, side="left")
    return begun > np.searchsorted(generated[:, 1], starts, side="right")


def _in_bytes(text: bytes, spans: Spans) -> IntArray:
    found = np.array(spans, np.int64)
    if text.isascii():
        return found
    first_bytes = np.flatnonzero(np.frombuffer(text, np.uint8) & 0xC0 != 0x80)
    return np.append(first_bytes, len(text))[found]


def _trim(text: bytes, starts: IntArray, ends: IntArray, borders: IntArray) -> None:
    """Trim spaces at both ends of the tokens that cross a border. Other tokens are on one side of it anyway."""
    places = np.searchsorted(starts, borders, side="left") - 1
    crossing = (places >= 0) & (ends[places] > borders)
    for place in np.unique(places[crossing]).tolist():
        start, end = int(starts[place]), int(ends[place])
        token = text[start:end]
        starts[place] = min(start + len(token) - len(token.lstrip(_SPACE)), end - 1)
        ends[place] = max(end - len(token) + len(token.rstrip(_SPACE)), int(starts[place]) + 1)


ChatEos = Literal["auto", "always", "never"]


def end_conversations(
    vocabulary: TokenTable,
    eos_id: int | None,
    rule: ChatEos,
    ids: NDArray[np.uint32],
    lengths: IntArray,
    mask: NDArray[np.bool_],
) -> tuple[NDArray[np.uint32], IntArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """Append EOS tokens to conversations, whose ids, lengths (not 0) and masks are concatenated.

    The rule `"auto"` appends one to conversations that don't end in it, ignoring white space; `"always"` to those whose
    last token is another; `"never"` to none. Without EOS token the rule is `"never"`.

    Returns:
        The new ids, lengths and mask, and bool[n]: conversations in which no trained token ends the last answer.
    """
    if not len(lengths):
        return ids, lengths, mask, np.empty(0, np.bool_)
    stops = np.cumsum(lengths)
    starts = stops - lengths
    last = _skip_blanks(vocabulary, ids, stops - 1, starts)
    is_ended = vocabulary.is_special[ids[last]]
    appended = np.zeros(len(lengths), np.bool_)
    if eos_id is not None and rule != "never":
        appended = ids[last if rule == "auto" else stops - 1] != eos_id
    trained = appended & mask[last] & ~is_ended
    # The last answer is followed by other messages if the last token isn't generated.
    generated = np.flatnonzero(mask)
    place = np.searchsorted(generated, stops) - 1
    answer = generated[np.maximum(place, 0)] if len(generated) else np.zeros(len(lengths), np.int64)
    has_answer = (place >= 0) & (answer >= starts) if len(generated) else np.zeros(len(lengths), np.bool_)
    answer = _skip_blanks(vocabulary, ids, np.where(has_answer, answer, starts), starts)
    endless = has_answer & ~trained & ~(vocabulary.is_special[ids[answer]] & mask[answer])
    places = stops[appended]
    return np.insert(ids, places, eos_id or 0), lengths + appended, np.insert(mask, places, trained[appended]), endless


def _skip_blanks(vocabulary: TokenTable, ids: NDArray[np.uint32], places: IntArray, first: IntArray) -> IntArray:
    places = places.copy()
    while (blank := vocabulary.is_blank[ids[places]] & (places > first)).any():
        places[blank] -= 1
    return places
