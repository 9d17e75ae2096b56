"""Torch's base classes, where torch is installed: Modalities' own code tests for them with `isinstance`."""

from __future__ import annotations

import importlib
from typing import Any


def _torch_class(name: str) -> Any:
    try:
        return getattr(importlib.import_module("torch.utils.data"), name)
    except ModuleNotFoundError:
        return object


Dataset: Any = _torch_class("Dataset")
Sampler: Any = _torch_class("Sampler")
