"""The original's `streaming.base.format.xsv`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock._facade import modules_of
from penstock.compat.streaming.writers import CSVWriter as CSVWriter
from penstock.compat.streaming.writers import TSVWriter as TSVWriter
from penstock.compat.streaming.writers import XSVWriter as XSVWriter

__getattr__ = modules_of(__name__)
