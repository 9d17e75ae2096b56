"""The original's `streaming.text`: datasets of texts that are tokenized on reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock._facade import modules_of
from penstock.compat.streaming.checks import package
from penstock.compat.streaming.dataset import StreamingDataset
from penstock.errors import ConfigError

__getattr__ = modules_of(__name__)

__all__ = ["StreamingC4", "StreamingEnWiki", "StreamingPile"]

AS_THERE: dict[str, Any] = {"partition_algo": "orig", "shuffle_algo": "py1s", "shuffle_block_size": 1 << 18}
"""Defaults of the original's own datasets that are not those of its `StreamingDataset`."""

_DTYPES = {"masked_lm_weights": np.float32}
_IGNORED = -100


class _Tokenised(StreamingDataset):
    """Texts of the column `text`, encoded by a tokenizer of transformers to one length.

    Args:
        tokenizer_name: name or folder, as for `AutoTokenizer.from_pretrained`.
        max_seq_len: tokens per sample; longer texts are truncated, shorter ones padded.
        group_method: `"truncate"`.
        options: of `StreamingDataset`.

    Raises:
        ConfigError: another `group_method`.
        MissingExtra: transformers is not installed.
    """

    def __init__(self, *, tokenizer_name: str, max_seq_len: int, group_method: str, **options: Any) -> None:
        if group_method != "truncate":
            raise ConfigError("unknown group_method", found=repr(group_method), expected="'truncate'")
        super().__init__(**{**AS_THERE, **options})
        self.tokenizer_name = tokenizer_name
        self.max_seq_len = max_seq_len
        self.group_method = group_method
        tokenizers: Any = package("transformers")
        self.tokenizer: Any = tokenizers.AutoTokenizer.from_pretrained(tokenizer_name)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def _tokenize(self, text_sample: Mapping[str, Any]) -> Any:
        """Return the tokenizer's output for a sample; subclasses may override it."""
        return self.tokenizer(text_sample["text"], truncation=True, padding="max_length", max_length=self.max_seq_len)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Sample `sample_id`, tokenised."""
        return self._tokenize(super().get_item(sample_id, retry))


class StreamingC4(_Tokenised):
    """C4, of the columns `text`, `timestamp` and `url`."""


class StreamingPile(_Tokenised):
    """The Pile, of the columns `text` and `pile_set_name`."""


class StreamingEnWiki(StreamingDataset):
    """English Wikipedia for masked language models: columns of bytes, as arrays.

    Args:
        options: of `StreamingDataset`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**AS_THERE, **options})

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return int32[n] `input_ids`, `token_type_ids`, `attention_mask`; int64[n] `labels`, -100 if not masked."""
        stored: Mapping[str, bytes] = super().get_item(sample_id, retry)
        found: dict[str, Any] = {
            name: np.frombuffer(data, _DTYPES.get(name, np.int32)) for name, data in stored.items()
        }
        labels = np.full(len(found["input_ids"]), _IGNORED)
        labels[found["masked_lm_positions"]] = found["masked_lm_ids"]
        return {
            "input_ids": found["input_ids"].copy(),
            "token_type_ids": found["segment_ids"].copy(),
            "attention_mask": found["input_mask"].copy(),
            "labels": labels,
        }
