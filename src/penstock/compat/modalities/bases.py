"""Torch's base classes, where torch is installed: Modalities' own code tests for them with `isinstance`."""

from __future__ import annotations

from typing import Any

from penstock.compat.torch_class import torch_class

Dataset: Any = torch_class("Dataset")
Sampler: Any = torch_class("Sampler")
