"""Samples that the tests of MosaicML Streaming write: its source distribution leaves its own module out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from streaming import MDSWriter


class SequenceDataset:
    """`id`, the number as text of six digits, and `sample`, three times the number and an offset."""

    column_encodings = ("str", "int")
    column_sizes = (None, 8)

    def __init__(self, size: int = 100, column_names: Any = ("id", "sample"), offset: int = 0) -> None:
        self.size = size
        self.column_names = list(column_names)
        self.column_encodings = list(SequenceDataset.column_encodings)
        self.column_sizes = list(SequenceDataset.column_sizes)
        self.offset = offset

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.size:
            raise IndexError(index)
        return dict(zip(self.column_names, (f"{index:06}", 3 * index + self.offset), strict=True))

    def get_sample_in_bytes(self, index: int) -> dict[str, bytes]:
        text, number = self[index].values()
        return dict(zip(self.column_names, (text.encode(), np.int64(number).tobytes()), strict=True))


class NumberAndSayDataset:
    """`number`, drawn of a seed, and `words`, its digits as words."""

    _WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

    def __init__(self, size: int = 100, seed: int = 0, column_names: Any = ("number", "words")) -> None:
        self.size = size
        self.seed = seed
        self.column_names = list(column_names)
        self.column_encodings = ["int", "str"]
        self.column_sizes = [8, None]

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in np.random.default_rng(self.seed).integers(0, 10**9, self.size).tolist():
            words = " ".join(self._WORDS[int(digit)] for digit in str(number))
            yield dict(zip(self.column_names, (number, words), strict=True))


def write_mds_dataset(out_root: str, columns: Any, samples: Any, size_limit: Any, **options: Any) -> None:
    with MDSWriter(out=out_root, columns=columns, size_limit=size_limit, **options) as out:
        for sample in samples:
            out.write(sample)
