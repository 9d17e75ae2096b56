"""Energon's module `flavors.jsonl.crude_jsonl_dataset`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import CrudeJsonlDatasetFactory as CrudeJsonlDatasetFactory
from penstock.compat.energon.factories import DefaultCrudeJsonlDatasetFactory as DefaultCrudeJsonlDatasetFactory
