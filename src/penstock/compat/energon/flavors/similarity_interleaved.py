"""Energon's module `flavors.similarity_interleaved`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import SimilarityInterleavedWebdataset as SimilarityInterleavedWebdataset
from penstock.compat.energon.samples import SimilarityInterleavedSample as SimilarityInterleavedSample
