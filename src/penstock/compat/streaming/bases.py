"""Torch's base classes, where torch is installed: a DataLoader distinguishes datasets by them."""

from __future__ import annotations

import importlib
from typing import Any


def _torch_class(name: str) -> Any:
    try:
        return getattr(importlib.import_module("torch.utils.data"), name)
    except ModuleNotFoundError:
        return object


Dataset: Any = _torch_class("Dataset")
IterableDataset: Any = _torch_class("IterableDataset")


def worker_info() -> Any:
    """Torch's information on the DataLoader worker that this process is; None elsewhere."""
    try:
        return importlib.import_module("torch.utils.data").get_worker_info()
    except ModuleNotFoundError:
        return None
