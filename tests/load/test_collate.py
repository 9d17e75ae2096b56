from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import ConfigError
from penstock.load.collate import collate_columns, join_cu_seqlens


def test_columns_pass_as_they_are() -> None:
    batch = {"tokens": np.arange(6).reshape(2, 3), "text": ["a", "b"]}
    assert collate_columns(batch) is batch


def test_cu_seqlens_of_windows_are_joined() -> None:
    windows = [np.array([0, 3, 8], np.int32), np.array([0, 8], np.int32), np.array([0, 1, 2, 6], np.int32)]
    batch = collate_columns({"tokens": np.zeros((3, 8)), "cu_seqlens": windows, "max_seqlen": np.array([5, 8, 4])})
    assert batch["cu_seqlens"].tolist() == [0, 3, 8, 16, 17, 18, 22]
    assert batch["cu_seqlens"].dtype == np.int32
    assert batch["max_seqlen"] == 8
    assert set(batch) == {"tokens", "cu_seqlens", "max_seqlen"}


def test_no_windows_join_to_no_documents() -> None:
    joined, longest = join_cu_seqlens([])
    assert (joined.tolist(), longest) == ([0], 0)


def test_more_tokens_than_int32_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="more tokens than int32"):
        join_cu_seqlens([np.array([0, 2**31 - 1]), np.array([0, 1])])
