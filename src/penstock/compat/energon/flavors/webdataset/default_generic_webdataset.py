"""Energon's module `flavors.webdataset.default_generic_webdataset`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import DefaultGenericWebdatasetFactory as DefaultGenericWebdatasetFactory
