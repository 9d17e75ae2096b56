"""Energon's module `task_encoder.loader`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.datasets import get_train_dataset as get_train_dataset
from penstock.compat.energon.datasets import get_val_dataset as get_val_dataset
from penstock.compat.energon.datasets import get_val_datasets as get_val_datasets
