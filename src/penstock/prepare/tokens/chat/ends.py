"""The ends of conversations: which ones get an EOS token, and whether it is trained on.

A model learns to stop from the token that ends its answers. Templates write one, such as `<|im_end|>`, or none. So an
EOS token is appended, and belongs to the loss only if the answer has no end token of its own.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.prepare.tokens.chat.vocabulary import Vocabulary
from penstock.types import IntArray

ChatEos = Literal["auto", "always", "never"]


def end_conversations(
    vocabulary: Vocabulary,
    eos_id: int | None,
    rule: ChatEos,
    ids: NDArray[np.uint32],
    lengths: IntArray,
    mask: NDArray[np.bool_],
) -> tuple[NDArray[np.uint32], IntArray, NDArray[np.bool_], NDArray[np.bool_]]:
    """Append EOS tokens to conversations.

    Args:
        vocabulary: of the tokenizer.
        eos_id: the EOS token; None if there is none, with the rule `"never"`.
        rule: `"auto"` appends it to conversations that don't end in it, white space ignored; `"always"` to those whose
            last token is another; `"never"` to none.
        ids: uint32[n_ids] of all conversations, one after another.
        lengths: int64[n], of each; none is 0.
        mask: bool[n_ids], whether a token is trained on.

    Returns:
        The same ids, lengths and mask with the EOS tokens, and bool[n]: the conversations in which no trained token
        ends the last answer.
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


def _skip_blanks(vocabulary: Vocabulary, ids: NDArray[np.uint32], places: IntArray, first: IntArray) -> IntArray:
    """Return the last place at or before each of `places` whose token is not white space, and at least `first`."""
    places = places.copy()
    while (blank := vocabulary.is_blank[ids[places]] & (places > first)).any():
        places[blank] -= 1
    return places
