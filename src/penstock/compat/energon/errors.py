"""Energon's module `errors`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.energon.worker import FatalSampleError as FatalSampleError
from penstock.compat.energon.worker import SampleException as SampleException
from penstock.compat.energon.worker import log_exception as log_exception
from penstock.compat.energon.worker import reraise_exception as reraise_exception
from penstock.cook import SkipSample as SkipSample
