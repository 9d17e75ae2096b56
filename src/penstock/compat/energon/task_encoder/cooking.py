"""Energon's module `task_encoder.cooking`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.cookers import Cooker as Cooker
from penstock.compat.energon.cookers import cooker as cooker
from penstock.compat.energon.samples import basic_sample_keys as basic_sample_keys
