"""Energon's module `flavors.webdataset`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.energon.cookers import SampleDecoder as SampleDecoder
from penstock.compat.energon.factories import BaseWebdatasetFactory as BaseWebdatasetFactory
from penstock.compat.energon.factories import DefaultDecoderWebdatasetFactory as DefaultDecoderWebdatasetFactory
from penstock.compat.energon.factories import DefaultGenericWebdatasetFactory as DefaultGenericWebdatasetFactory
from penstock.compat.energon.factories import JoinedWebdatasetFactory as JoinedWebdatasetFactory
from penstock.compat.energon.factories import StandardWebdatasetFactory as StandardWebdatasetFactory
from penstock.compat.energon.media import AVData as AVData
from penstock.compat.energon.media import AVDecoder as AVDecoder

__getattr__ = modules_of(__name__)
