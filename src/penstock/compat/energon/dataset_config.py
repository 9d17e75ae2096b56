"""Energon's module `dataset_config`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import get_dataset_from_config as get_dataset_from_config
