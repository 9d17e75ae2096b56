"""Energon's module `flavors.interleaved`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import InterleavedWebdataset as InterleavedWebdataset
from penstock.compat.energon.samples import InterleavedSample as InterleavedSample
