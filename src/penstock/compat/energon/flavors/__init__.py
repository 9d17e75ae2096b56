"""Energon's module `flavors`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.energon.cookers import SampleDecoder as SampleDecoder
from penstock.compat.energon.factories import BaseCoreDatasetFactory as BaseCoreDatasetFactory
from penstock.compat.energon.factories import BaseWebdatasetFactory as BaseWebdatasetFactory
from penstock.compat.energon.factories import CaptioningWebdataset as CaptioningWebdataset
from penstock.compat.energon.factories import CrudeJsonlDatasetFactory as CrudeJsonlDatasetFactory
from penstock.compat.energon.factories import CrudeWebdataset as CrudeWebdataset
from penstock.compat.energon.factories import DefaultCrudeJsonlDatasetFactory as DefaultCrudeJsonlDatasetFactory
from penstock.compat.energon.factories import DefaultDecoderWebdatasetFactory as DefaultDecoderWebdatasetFactory
from penstock.compat.energon.factories import DefaultGenericWebdatasetFactory as DefaultGenericWebdatasetFactory
from penstock.compat.energon.factories import ImageClassificationWebdataset as ImageClassificationWebdataset
from penstock.compat.energon.factories import ImageWebdataset as ImageWebdataset
from penstock.compat.energon.factories import InterleavedWebdataset as InterleavedWebdataset
from penstock.compat.energon.factories import JoinedWebdatasetFactory as JoinedWebdatasetFactory
from penstock.compat.energon.factories import MultiChoiceVQAWebdataset as MultiChoiceVQAWebdataset
from penstock.compat.energon.factories import OCRWebdataset as OCRWebdataset
from penstock.compat.energon.factories import SimilarityInterleavedWebdataset as SimilarityInterleavedWebdataset
from penstock.compat.energon.factories import StandardWebdatasetFactory as StandardWebdatasetFactory
from penstock.compat.energon.factories import TextWebdataset as TextWebdataset
from penstock.compat.energon.factories import VidQAWebdataset as VidQAWebdataset
from penstock.compat.energon.factories import VQAOCRWebdataset as VQAOCRWebdataset
from penstock.compat.energon.factories import VQAWebdataset as VQAWebdataset
from penstock.compat.energon.samples import CaptioningSample as CaptioningSample
from penstock.compat.energon.samples import ImageClassificationSample as ImageClassificationSample
from penstock.compat.energon.samples import ImageSample as ImageSample
from penstock.compat.energon.samples import InterleavedSample as InterleavedSample
from penstock.compat.energon.samples import MultiChoiceVQASample as MultiChoiceVQASample
from penstock.compat.energon.samples import OCRSample as OCRSample
from penstock.compat.energon.samples import Sample as Sample
from penstock.compat.energon.samples import SimilarityInterleavedSample as SimilarityInterleavedSample
from penstock.compat.energon.samples import TextSample as TextSample
from penstock.compat.energon.samples import VidQASample as VidQASample
from penstock.compat.energon.samples import VQAOCRSample as VQAOCRSample
from penstock.compat.energon.samples import VQASample as VQASample
from penstock.compat.energon.walks import SavableDataset as SavableDataset
from penstock.cook import CrudeSample as CrudeSample

__getattr__ = modules_of(__name__)
