"""Energon's module `metadataset`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.energon.datasets import DatasetLoader as DatasetLoader
from penstock.compat.energon.datasets import DatasetLoaderInterface as DatasetLoaderInterface
from penstock.compat.energon.datasets import load_dataset as load_dataset
from penstock.compat.energon.datasets import prepare_metadataset as prepare_metadataset
from penstock.compat.energon.datasets import traverse_metadataset as traverse_metadataset

__getattr__ = modules_of(__name__)
