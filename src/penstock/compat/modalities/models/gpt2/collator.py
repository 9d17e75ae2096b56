"""The original's `modalities.models.gpt2.collator`."""

from penstock.compat.modalities.collators import (
    GPT2LLMCollateFn,
)

__all__ = [
    "GPT2LLMCollateFn",
]
