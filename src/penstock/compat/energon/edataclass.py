"""Energon's module `edataclass`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.samples import edataclass as edataclass
