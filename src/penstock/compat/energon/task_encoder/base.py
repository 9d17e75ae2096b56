"""Energon's module `task_encoder.base`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.batching import batch_list as batch_list
from penstock.compat.energon.batching import batch_pad_stack as batch_pad_stack
from penstock.compat.energon.batching import batch_stack as batch_stack
from penstock.compat.energon.batching import generic_batch as generic_batch
from penstock.compat.energon.cookers import Cooker as Cooker
from penstock.compat.energon.cookers import SampleDecoder as SampleDecoder
from penstock.compat.energon.cookers import cooker as cooker
from penstock.compat.energon.encoder import AugmentTaskEncoder as AugmentTaskEncoder
from penstock.compat.energon.encoder import DefaultTaskEncoder as DefaultTaskEncoder
from penstock.compat.energon.encoder import TaskEncoder as TaskEncoder
from penstock.compat.energon.encoder import get_failure_tolerance as get_failure_tolerance
from penstock.compat.energon.encoder import get_stateless as get_stateless
from penstock.compat.energon.encoder import stateless as stateless
from penstock.compat.energon.samples import Batch as Batch
from penstock.compat.energon.samples import Sample as Sample
from penstock.compat.energon.worker import WorkerConfig as WorkerConfig
