"""Energon's module `flavors.jsonl`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.energon.factories import CrudeJsonlDatasetFactory as CrudeJsonlDatasetFactory
from penstock.compat.energon.factories import DefaultCrudeJsonlDatasetFactory as DefaultCrudeJsonlDatasetFactory

__getattr__ = modules_of(__name__)
