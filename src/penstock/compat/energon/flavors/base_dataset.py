"""Energon's module `flavors.base_dataset`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import BaseCoreDatasetFactory as BaseCoreDatasetFactory
from penstock.compat.energon.samples import Sample as Sample
from penstock.compat.energon.walks import SavableDataset as SavableDataset
