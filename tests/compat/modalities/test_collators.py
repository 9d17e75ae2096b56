"""Modalities' collators: its tensors, and its masks between marker tokens."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.compat.modalities import (
    DatasetBatch,
    GPT2LLMCollateFn,
    LossMaskingCollateFnWrapper,
    LossMaskingTokenConfig,
    PackedMemMapDatasetContinuous,
)
from penstock.errors import ConfigError

GOLDEN = Path(__file__).parents[2] / "golden" / "modalities"
VIEWS = json.loads((GOLDEN / "views.json").read_text())
MASK = VIEWS["loss_mask"]


class Markers:
    """A tokenizer that knows the two markers."""

    def get_token_id(self, token: str) -> int:
        return {"^": MASK["b_id"], "$": MASK["e_id"]}[token]


def wrapper(begin: str = "^", end: str = "$", ignore: int = MASK["ignore"]) -> LossMaskingCollateFnWrapper:
    return LossMaskingCollateFnWrapper(
        wrapped_collate_fn=GPT2LLMCollateFn("samples", "targets"),
        target_keys_to_mask=["targets"],
        loss_ignore_index=ignore,
        mask_tokens=LossMaskingTokenConfig(b_include_to_loss_token=begin, e_include_to_loss_token=end),
        tokenizer=Markers(),
    )


@pytest.mark.parametrize("as_row", [lambda row: np.array(row, np.int32), lambda row: torch.tensor(row).int()])
def test_collator_golden(as_row: Any) -> None:
    expected = VIEWS["collator"]
    batch = GPT2LLMCollateFn("s", "t")([{"s": as_row(row), "other": 1} for row in expected["input"]])
    assert batch.samples["s"].tolist() == expected["samples"]
    assert batch.targets["t"].tolist() == expected["targets"]
    assert str(batch.samples["s"].dtype) == str(batch.targets["t"].dtype) == expected["dtype"]
    assert len(batch) == 2


def test_rows_may_be_lists() -> None:
    batch = GPT2LLMCollateFn("s", "t")([{"s": [1, 2, 3]}, {"s": [4, 5, 6]}])
    assert batch.samples["s"].dtype == torch.int64
    assert batch.targets["t"].tolist() == [[2, 3], [5, 6]]


def test_in_a_torch_loader() -> None:
    dataset = PackedMemMapDatasetContinuous(GOLDEN / "pbin" / "docs.bpe2.pbin", "s", 33, True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, collate_fn=GPT2LLMCollateFn("s", "t"), drop_last=True)
    batches = list(loader)
    assert len(batches) == len(dataset) // 4
    assert batches[1].samples["s"].tolist() == [dataset[index]["s"][:-1].tolist() for index in range(4, 8)]


def test_a_batch_moves_and_detaches() -> None:
    batch = DatasetBatch({"s": torch.ones(2, 3, requires_grad=True)}, {"t": torch.ones(2, 3)})
    batch.detach()
    assert not batch.samples["s"].requires_grad
    batch.to(torch.device("meta"))
    assert batch.device == torch.device("meta") == batch.targets["t"].device


@pytest.mark.parametrize("case", MASK["cases"], ids=lambda case: str(case["samples"]))
def test_loss_mask_golden(case: dict[str, Any]) -> None:
    batch = [{"samples": np.array(row)} for row in case["samples"]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if "error" in case["result"]:
            with pytest.raises(ValueError, match="row 0 don't alternate"):
                wrapper()(batch)
            return
        masked = wrapper()(batch)
    assert masked.targets["targets"].tolist() == case["result"]["value"]
    assert masked.samples["samples"].tolist() == [row[:-1] for row in case["samples"]]


@pytest.mark.parametrize(("row", "marker"), [([9, 9, 9], "begin"), ([9, 3, 9], "end"), ([9, 4, 9], "begin")])
def test_a_batch_without_a_marker_is_told_of(row: list[int], marker: str) -> None:
    with pytest.warns(UserWarning, match=f"the {marker} marker"):
        batch = wrapper()([{"samples": np.array(row)}])
    assert batch.targets["targets"].tolist() == [[-100, -100]]


@pytest.mark.parametrize(
    ("dtype", "expected"), [(np.uint8, torch.int64), (np.int32, torch.int32), (np.int64, torch.int64)]
)
def test_types_that_can_hold_what_is_ignored(dtype: Any, expected: Any) -> None:
    batch = wrapper()([{"samples": np.array([9, 3, 8, 4, 9], dtype=dtype)}])
    assert batch.targets["targets"].dtype == expected
    assert batch.targets["targets"].tolist() == [[-100, 8, -100, -100]]


def test_markers_must_differ() -> None:
    with pytest.raises(ConfigError, match="differ"):
        wrapper("^", "^")
