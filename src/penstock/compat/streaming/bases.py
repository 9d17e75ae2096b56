"""Torch's base classes, where torch is installed: a DataLoader distinguishes datasets by them."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.compat.torch_class import torch_class

Dataset: Any = torch_class("Dataset")
IterableDataset: Any = torch_class("IterableDataset")


def worker_info() -> Any:
    """Torch's information on the DataLoader worker that this process is; None elsewhere."""
    try:
        return importlib.import_module("torch.utils.data").get_worker_info()
    except ModuleNotFoundError:
        return None
