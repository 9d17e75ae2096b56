"""Energon's module `dataset_loader`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.datasets import DatasetLoader as DatasetLoader
from penstock.compat.energon.datasets import DatasetLoaderInterface as DatasetLoaderInterface
from penstock.compat.energon.datasets import load_dataset as load_dataset
