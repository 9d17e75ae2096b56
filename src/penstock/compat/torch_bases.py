"""Base classes of torch, by which DataLoader and other libraries distinguish datasets; `object` without torch."""

from __future__ import annotations

import importlib
from typing import Any

try:
    _data: Any = importlib.import_module("torch.utils.data")
except ModuleNotFoundError:
    _data = None

Dataset: Any = _data.Dataset if _data else object
IterableDataset: Any = _data.IterableDataset if _data else object
Sampler: Any = _data.Sampler if _data else object


def worker_info() -> Any:
    """Return torch's information on the DataLoader worker of this process; None outside workers and without torch."""
    return _data.get_worker_info() if _data else None
