"""Which tokens of a conversation are generated: those that start in a part of its text that is.

Text is tokenised as a whole and without the special tokens of a post-processor, as transformers does for chat
templates. A tokenizer tells from which character on a token is; of one whose characters it trimmed away, the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.prepare.tokens.chat.render import Spans
from penstock.prepare.tokens.engines import Encoded, TokenizersEngine


def encode_spans(
    engine: TokenizersEngine, texts: Sequence[bytes], spans: Sequence[Spans]
) -> tuple[Encoded, NDArray[np.bool_]]:
    """Ids and lengths of texts, and bool[n_ids]: whether a token starts in a part that is generated."""
    encoded, offsets = engine.encode_with_offsets(texts)
    masks = [np.empty(0, np.bool_)]
    for one, generated in zip(offsets, spans, strict=True):
        starts = one[:, 0] - ((one[:, 0] == one[:, 1]) & (one[:, 0] > 0))
        masks.append(np.searchsorted(np.array(generated, np.int64).reshape(-1), starts, side="right") % 2 == 1)
    return encoded, np.concatenate(masks)
