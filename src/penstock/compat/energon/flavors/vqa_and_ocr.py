"""Energon's module `flavors.vqa_and_ocr`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import VQAOCRWebdataset as VQAOCRWebdataset
from penstock.compat.energon.samples import VQAOCRSample as VQAOCRSample
