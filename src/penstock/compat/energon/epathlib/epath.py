"""Energon's module `epathlib.epath`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.epathlib import EPath as EPath
