"""Energon's module `metadataset.loader`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.datasets import load_dataset as load_dataset
from penstock.compat.energon.datasets import prepare_metadataset as prepare_metadataset
from penstock.compat.energon.datasets import traverse_metadataset as traverse_metadataset
