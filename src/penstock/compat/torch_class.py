"""Classes of torch that are bases here where it is installed."""

from __future__ import annotations

import importlib
from typing import Any


def torch_class(name: str) -> Any:
    """A class of `torch.utils.data`; `object` where there is no torch."""
    try:
        return getattr(importlib.import_module("torch.utils.data"), name)
    except ModuleNotFoundError:
        return object
