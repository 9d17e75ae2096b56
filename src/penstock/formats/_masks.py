"""Loss masks that other tools write next to tokens, one byte per token without a header, read as plane `loss_mask`.

| tokens | mask | made by |
|---|---|---|
| `X.ds` | `X.ds.loss` | datatrove |
| `token_ids….npy` | `labels_mask….npy` | open-instruct, for OLMo-core's `label_mask_paths` |
| `input_ids….npy` | `label_mask….npy` | OLMo's own scripts, for its `label_mask_paths` |

A byte that is not 0 counts. OLMo itself takes any names, pair by pair from its configuration: a mask that is called
otherwise is found once it is called so, by a link too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._tokens import DROP, LOSS_MASK
from penstock.errors import Truncated
from penstock.formats._planes import PlaneValues, require_inside
from penstock.store.base import Store
from penstock.store.fingerprint import sample_fingerprint
from penstock.types import Finding, IntArray, ReadMode

_NAMES = (("token_ids", "labels_mask"), ("input_ids", "label_mask"))


def mask_path(format: str, path: str) -> str | None:
    """Return the path of the mask of a token file; None if no tool writes a mask for the format."""
    if format == "datatrove":
        return path + ".loss"
    folder, slash, name = path.rpartition("/")
    for tokens, mask in _NAMES if format == "raw-tokens" and name.endswith(".npy") else ():
        if name.startswith(tokens):
            return folder + slash + mask + name.removeprefix(tokens)
    return None


@dataclass(frozen=True)
class MaskFile:
    """Loss mask in a file of its own; see `penstock._tokens.Plane`. Thread-safe, picklable.

    Attributes:
        num_tokens: number of values.
        file: the values, one byte each.
    """

    num_tokens: int
    file: PlaneValues

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.bool_)

    @cached_property
    def identity(self) -> tuple[str, str, str]:
        """Parts of the mask that a fingerprint covers: name, dtype, and a digest of samples of its bytes."""
        store, path = self.file.place
        return LOSS_MASK, "bool", sample_fingerprint(store, "loss mask", b"", [(LOSS_MASK, path)])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return bool[stop - start], the values of tokens `[start, stop)`; raise `IndexError` if out of range."""
        require_inside(start, stop, self.num_tokens)
        return self.file.read(start, stop) != 0

    def gather(self, starts: IntArray, length: int) -> NDArray[Any]:
        """Return bool[len(starts), length], one window per row; raise `IndexError` if out of range."""
        starts = np.asarray(starts, np.int64)
        if starts.size:
            require_inside(int(starts.min()), int(starts.max()) + length, self.num_tokens)
        return self.file.gather(starts, length) != 0


def mask_beside(format: str, store: Store, path: str, num_tokens: int, read: ReadMode) -> MaskFile | None:
    """Return the mask next to the tokens, or None.

    Raises:
        Truncated: its length differs from the number of tokens.
        UnsafeData: it is a pipe or a device.
    """
    beside = mask_path(format, path)
    if beside is None or not store.exists(beside):
        return None
    size_bytes = store.size(beside)
    if size_bytes != num_tokens:
        what, expected = "the loss mask and the tokens have different lengths", f"{num_tokens} bytes, one per token"
        raise Truncated(what, path=beside, found=f"{size_bytes} bytes", expected=expected, hint=f"Restore it. {DROP}")
    return MaskFile(num_tokens, PlaneValues(store, beside, num_tokens, np.dtype("u1"), read))


def check_mask(format: str, store: Store, path: str, num_tokens: int) -> list[Finding]:
    try:
        mask_beside(format, store, path, num_tokens, "pread")
    except Truncated as error:
        what, where = f"{error.what}: {error.found}", str(error.path)
        return [Finding(f"{format}.loss-mask", "error", where, None, what, str(error.expected), error.hint)]
    return []
