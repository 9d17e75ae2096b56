"""Energon's module `task_encoder`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.energon.batching import batch_list as batch_list
from penstock.compat.energon.batching import batch_pad_stack as batch_pad_stack
from penstock.compat.energon.batching import batch_stack as batch_stack
from penstock.compat.energon.batching import generic_batch as generic_batch
from penstock.compat.energon.cookers import Cooker as Cooker
from penstock.compat.energon.cookers import cooker as cooker
from penstock.compat.energon.datasets import get_train_dataset as get_train_dataset
from penstock.compat.energon.datasets import get_val_dataset as get_val_dataset
from penstock.compat.energon.datasets import get_val_datasets as get_val_datasets
from penstock.compat.energon.encoder import AugmentTaskEncoder as AugmentTaskEncoder
from penstock.compat.energon.encoder import DefaultTaskEncoder as DefaultTaskEncoder
from penstock.compat.energon.encoder import TaskEncoder as TaskEncoder
from penstock.compat.energon.encoder import stateless as stateless
from penstock.compat.energon.samples import Batch as Batch
from penstock.compat.energon.samples import Sample as Sample
from penstock.compat.energon.samples import basic_sample_keys as basic_sample_keys

__getattr__ = modules_of(__name__)
