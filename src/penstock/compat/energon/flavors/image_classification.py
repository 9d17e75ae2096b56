"""Energon's module `flavors.image_classification`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import ImageClassificationWebdataset as ImageClassificationWebdataset
from penstock.compat.energon.samples import ImageClassificationSample as ImageClassificationSample
