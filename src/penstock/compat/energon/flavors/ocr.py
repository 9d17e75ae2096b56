"""Energon's module `flavors.ocr`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import OCRWebdataset as OCRWebdataset
from penstock.compat.energon.samples import OCRSample as OCRSample
