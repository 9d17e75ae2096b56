"""Energon's module `savable_loader`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.loader import SavableDataLoader as SavableDataLoader
