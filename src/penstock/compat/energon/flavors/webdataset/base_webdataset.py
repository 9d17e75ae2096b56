"""Energon's module `flavors.webdataset.base_webdataset`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.factories import BaseWebdatasetFactory as BaseWebdatasetFactory
