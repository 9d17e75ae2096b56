"""Energon's module `metadataset.dataset_loader`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.datasets import DatasetLoader as DatasetLoader
