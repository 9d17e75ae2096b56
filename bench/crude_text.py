"""The task encoder of `energon_loading`, the same for both loaders: in a module, so that worker processes import it."""

from __future__ import annotations

from typing import Any

try:
    import megatron.energon as en  # type: ignore[import-not-found]
except ImportError:
    from penstock.compat import energon as en


def cook(sample: Any) -> Any:
    """One text."""
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["json"]["text"])


class Encoder(en.DefaultTaskEncoder):
    """Cooks, and batches as they come."""

    cookers = (en.Cooker(en.stateless(cook)),)
