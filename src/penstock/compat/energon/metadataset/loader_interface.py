"""Energon's module `metadataset.loader_interface`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.datasets import DatasetLoaderInterface as DatasetLoaderInterface
from penstock.compat.energon.datasets import TraversedDatasetReference as TraversedDatasetReference
from penstock.compat.energon.factories import DatasetBlendMode as DatasetBlendMode
from penstock.compat.energon.factories import LoadedDataset as LoadedDataset
from penstock.compat.energon.factories import LoadedDatasetList as LoadedDatasetList
