"""Parts of samples: how many samples have each, and how large it is; from the headers of some samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._printable import recordable
from penstock.errors import PenstockError
from penstock.formats._exclusions import stored
from penstock.view.facts.bounds import MOST_NAME_CHARACTERS
from penstock.view.facts.figures import at_hand
from penstock.view.facts.opening import Opened
from penstock.view.facts.samples import TellsParts

LOOKED_AT, REMOTE_LOOKED_AT = 256, 16
"""Limits on samples with headers to read, evenly spread; on a remote store each takes several requests."""

MOST_KINDS = 200


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    share: float
    mean_bytes: float
    share_of_bytes: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a dataset's samples, the most frequent first; from some or all samples."""

    parts: tuple[Part, ...]
    estimated_from: int | None
    of: int


def parts_of_samples(opened: Opened, count: int) -> Parts | None:
    """Return the parts of the samples; None if their headers don't contain them."""
    source: Any = stored(opened.source)
    if not isinstance(source, TellsParts) or opened.format != "webdataset" or not count:
        return None
    most = LOOKED_AT if opened.place is None or opened.place.is_local else REMOTE_LOOKED_AT
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)).tolist()
    counts: dict[str, int] = {}
    sizes: dict[str, int] = {}
    looked_at = 0
    for index in chosen:
        try:
            found = at_hand(lambda index=index: source.parts_of(index, MOST_KINDS), None)
        except PenstockError:  # damage is reported where the data is shown
            continue
        if found is None:
            return None
        looked_at += 1
        for name, extent in dict(found[1]).items():
            if name in counts or len(counts) < MOST_KINDS:
                counts[name] = counts.get(name, 0) + 1
                sizes[name] = sizes.get(name, 0) + extent.length_bytes
    whole = sum(sizes.values()) or 1
    made = [
        Part(recordable(name[:MOST_NAME_CHARACTERS]), seen / looked_at, sizes[name] / seen, sizes[name] / whole)
        for name, seen in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return Parts(tuple(made), looked_at if looked_at < count else None, count) if made else None
