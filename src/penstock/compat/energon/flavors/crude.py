"""Energon's module `flavors.crude`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import CrudeWebdataset as CrudeWebdataset
from penstock.cook import CrudeSample as CrudeSample
