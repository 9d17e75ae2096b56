"""The task encoder of `energon_loading` for both loaders, in a module that worker processes can import."""

from __future__ import annotations

from typing import Any

try:
    import megatron.energon as en  # type: ignore[import-not-found]
except ImportError:
    from penstock.compat import energon as en


def cook(sample: Any) -> Any:
    """Return one text sample."""
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["json"]["text"])


class Encoder(en.DefaultTaskEncoder):
    """Encoder with one cooker and default batches."""

    cookers = (en.Cooker(en.stateless(cook)),)
