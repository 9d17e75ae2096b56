"""The original's `streaming.base.format.xsv.writer`: its names, which are made elsewhere."""

from __future__ import annotations

from penstock.compat.streaming.writers import CSVWriter as CSVWriter
from penstock.compat.streaming.writers import TSVWriter as TSVWriter
from penstock.compat.streaming.writers import XSVWriter as XSVWriter
