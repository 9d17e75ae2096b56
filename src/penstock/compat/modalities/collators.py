"""Modalities' collators: samples and targets as torch tensors, and targets outside of markers masked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._arrays import in_memory
from penstock._optional import require
from penstock.errors import ConfigError
from penstock.pack.labels import mask_between

torch: Any = require("torch", extra="torch")


@dataclass
class DatasetBatch:
    """Result of a collator: samples and targets, each a dict of tensors.

    Examples:
        >>> import torch
        >>> from penstock.compat.modalities import DatasetBatch
        >>> batch = DatasetBatch({"input_ids": torch.zeros(4, 7)}, {"target_ids": torch.zeros(4, 7)})
        >>> len(batch), batch.device
        (4, device(type='cpu'))
    """

    samples: dict[str, Any]
    targets: dict[str, Any]
    batch_dim: int = 0

    def to(self, device: Any) -> None:
        """Move all tensors to a device."""
        self.samples = {key: tensor.to(device) for key, tensor in self.samples.items()}
        self.targets = {key: tensor.to(device) for key, tensor in self.targets.items()}

    def detach(self) -> None:
        """Detach all tensors from the graph."""
        self.samples = {key: tensor.detach() for key, tensor in self.samples.items()}
        self.targets = {key: tensor.detach() for key, tensor in self.targets.items()}

    @property
    def device(self) -> Any:
        """Device of the samples."""
        return next(iter(self.samples.values())).device

    def __len__(self) -> int:
        return next(iter(self.samples.values())).shape[self.batch_dim]


class GPT2LLMCollateFn:
    """Collator that splits windows of tokens into samples and targets.

    Windows of L tokens become samples [k, L - 1], and targets one token later, of the same dtype.

    Args:
        sample_key: key of the tokens in an item, and of the samples.
        target_key: key of the targets.

    Examples:
        >>> from penstock.compat.modalities import GPT2LLMCollateFn, PackedMemMapDatasetContinuous
        >>> blocks = PackedMemMapDatasetContinuous("corpus.pbin", "input_ids", block_size=8, reuse_last_target=True)
        >>> collate = GPT2LLMCollateFn(sample_key="input_ids", target_key="target_ids")
        >>> batch = collate([blocks[0], blocks[1]])
        >>> batch.samples["input_ids"].shape
        torch.Size([2, 7])
    """

    def __init__(self, sample_key: str, target_key: str) -> None:
        self.sample_key = sample_key
        self.target_key = target_key

    def __call__(self, batch: Sequence[Mapping[str, Any]]) -> DatasetBatch:
        rows = [item[self.sample_key] for item in batch]
        with in_memory("a batch", f"{len(rows)} rows of {self.sample_key!r}"):
            if all(isinstance(row, np.ndarray) for row in rows):
                tokens = torch.from_numpy(np.stack(rows))
            else:
                tokens = torch.stack([torch.as_tensor(row) for row in rows])
        return DatasetBatch({self.sample_key: tokens[:, :-1]}, {self.target_key: tokens[:, 1:]})


@dataclass(frozen=True, slots=True)
class LossMaskingTokenConfig:
    """Marker tokens for loss masking. Modalities' own class of this name is accepted too.

    Examples:
        >>> from penstock.compat.modalities import LossMaskingTokenConfig
        >>> LossMaskingTokenConfig(b_include_to_loss_token="<answer>", e_include_to_loss_token="</answer>")
        LossMaskingTokenConfig(b_include_to_loss_token='<answer>', e_include_to_loss_token='</answer>')
    """

    b_include_to_loss_token: str
    e_include_to_loss_token: str


class LossMaskingCollateFnWrapper:
    """Collator that masks all targets except those strictly between two marker tokens.

    Masked targets become `loss_ignore_index`.

    If one of the markers is missing from all rows of a batch, all targets are masked, with a warning.

    Args:
        wrapped_collate_fn: collator that makes the batch.
        target_keys_to_mask: keys of the targets to mask.
        loss_ignore_index: value that the loss ignores.
        mask_tokens: the markers.
        tokenizer: any object with `get_token_id(token)`.

    Raises:
        ConfigError: both markers have the same id.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.modalities import GPT2LLMCollateFn, LossMaskingCollateFnWrapper, LossMaskingTokenConfig
        >>> class Tokenizer:
        ...     def get_token_id(self, token):
        ...         return {"<answer>": 1, "</answer>": 2}[token]
        >>> collate = LossMaskingCollateFnWrapper(
        ...     wrapped_collate_fn=GPT2LLMCollateFn("input_ids", "target_ids"),
        ...     target_keys_to_mask=["target_ids"],
        ...     loss_ignore_index=-100,
        ...     mask_tokens=LossMaskingTokenConfig("<answer>", "</answer>"),
        ...     tokenizer=Tokenizer(),
        ... )
        >>> batch = collate([{"input_ids": np.array([9, 8, 1, 7, 6, 2, 5])}])
        >>> batch.targets["target_ids"].tolist()
        [[-100, -100, 7, 6, -100, -100]]
    """

    def __init__(
        self,
        wrapped_collate_fn: Callable[[Any], Any],
        target_keys_to_mask: Sequence[str],
        loss_ignore_index: int,
        mask_tokens: Any,
        tokenizer: Any,
    ) -> None:
        self.wrapped_collate_fn = wrapped_collate_fn
        self.target_keys_to_mask = target_keys_to_mask
        self.loss_ignore_index = loss_ignore_index
        self.tokenizer = tokenizer
        self.b_mask_token_id: int = tokenizer.get_token_id(mask_tokens.b_include_to_loss_token)
        self.e_mask_token_id: int = tokenizer.get_token_id(mask_tokens.e_include_to_loss_token)
        if self.b_mask_token_id == self.e_mask_token_id:
            raise ConfigError("the marker tokens must differ", found=f"id {self.b_mask_token_id} for both")

    def __call__(self, batch: Any) -> Any:
        collated = self.wrapped_collate_fn(batch)
        for key in self.target_keys_to_mask:
            collated.targets[key] = self._masked(collated.targets[key])
        return collated

    def _masked(self, target: Any) -> Any:
        ids = target.numpy(force=True)
        for what, marker in (("begin", self.b_mask_token_id), ("end", self.e_mask_token_id)):
            if not (ids == marker).any():
                warnings.warn(
                    f"no target in this batch is the {what} marker, id {marker}: all of its targets are masked. "
                    "Check how the tokenizer splits the markers, and whether a window is long enough for an answer.",
                    stacklevel=3,
                )
                break
        keep = torch.from_numpy(mask_between(ids, self.b_mask_token_id, self.e_mask_token_id)).to(target.device)
        if target.dtype == torch.uint8 and self.loss_ignore_index not in range(256):
            target = target.long()
        return torch.where(keep, target, self.loss_ignore_index)
