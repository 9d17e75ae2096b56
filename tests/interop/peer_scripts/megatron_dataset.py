"""Runs with megatron-core's interpreter: writes datasets with its builder, or reads them with its dataset."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDataset, IndexedDatasetBuilder


def write(prefix: str, dtype: str, documents: list[list[list[int]]], modes: list[int] | None) -> None:
    """Documents of sequences; `modes` one a sequence."""
    multimodal = modes is not None
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type, multimodal=multimodal)
    left = list(modes or [])
    for document in documents:
        for sequence in document:
            tokens = torch.tensor(sequence, dtype=torch.int64)
            builder.add_item(tokens, left.pop(0)) if multimodal else builder.add_item(tokens)
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def merge(prefix: str, dtype: str, parts: list[str]) -> None:
    """What its `merge_datasets` tool does."""
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type)
    for part in parts:
        builder.add_index(part)
    builder.finalize(f"{prefix}.idx")


def read(prefix: str, multimodal: bool = False) -> dict[str, Any]:
    """What its dataset gives for each sequence, and the arrays of its index."""
    dataset = IndexedDataset(prefix, multimodal=multimodal)
    items = [dataset[i] for i in range(len(dataset))]
    return {
        "sequences": [(item[0] if multimodal else item).astype(int).tolist() for item in items],
        "modes": [int(item[1]) for item in items] if multimodal else None,
        "documents": dataset.document_indices.tolist(),
        "lengths": dataset.sequence_lengths.tolist(),
        "dtype": np.dtype(dataset.index.dtype).name,
        "get": dataset.get(0, offset=1, length=1).tolist() if items and not multimodal and len(items[0]) > 1 else None,
    }


def rule(sizes: list[int]) -> list[str]:
    """The dtype that it takes for each vocabulary."""
    return [np.dtype(DType.optimal_dtype(size)).name for size in sizes]


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    calls = {"write": write, "merge": merge, "read": read, "rule": rule}
    print(json.dumps(calls[given.pop("call")](**given)))


main()
