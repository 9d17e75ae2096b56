"""The original's `modalities.dataloader.collate_fns.collator_fn_wrapper_for_loss_masking`."""

from penstock.compat.modalities.collators import (
    LossMaskingCollateFnWrapper,
    LossMaskingTokenConfig,
)

__all__ = [
    "LossMaskingCollateFnWrapper",
    "LossMaskingTokenConfig",
]
