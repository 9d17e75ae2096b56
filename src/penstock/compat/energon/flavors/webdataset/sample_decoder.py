"""Energon's module `flavors.webdataset.sample_decoder`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.cookers import SampleDecoder as SampleDecoder
