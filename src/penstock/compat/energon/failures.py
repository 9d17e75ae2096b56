"""Counts samples that functions skip or fail on, and ends the run where too many fail."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from penstock.compat.energon.samples import sources_of
from penstock.compat.energon.worker import FatalSampleError, WorkerConfig, said
from penstock.cook import SkipSample
from penstock.cook.cookers import as_cook_error
from penstock.errors import FormatError


class Failures:
    """Counts samples that were skipped or failed, calls the handler, and ends the run where too many fail in a row.

    Attributes:
        counts: what → how many samples: `"skipped"`, and the name of each stage that failed.
        in_a_row: stage → how many samples failed in it one after another; empty where none did.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self.in_a_row: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def __reduce__(self) -> tuple[object, ...]:
        return (Failures, (self._config,))

    def passed(self, stage: str) -> None:
        """A sample came through a stage."""
        if self.in_a_row:
            self.in_a_row.pop(stage, None)

    def skipped(self) -> None:
        """A function skipped a sample."""
        with self._lock:
            self.counts["skipped"] += 1

    def failed(self, stage: str, error: Exception, sample: Any, tolerance: int | None) -> None:
        """A sample failed in a stage.

        Raises:
            FatalSampleError: it is one too many in a row.
        """
        with self._lock:
            self.counts[stage] += 1
            self.in_a_row[stage] += 1
            in_a_row = self.in_a_row[stage]
        self._config.global_error_handler(error, sample, sources_of(sample))
        if tolerance and in_a_row >= tolerance:
            raise FatalSampleError(
                f"{stage} failed {in_a_row} times in a row", found=said(error), hint="Look at the function or the data"
            ) from error


def lost(failures: Failures, stage: str, error: Exception, sample: Any, tolerance: int | None) -> None:
    """Count a sample that a function skipped or failed on; raise what is no sample's fault."""
    if isinstance(error, SkipSample):
        failures.skipped()
        return
    wrapped = as_cook_error(error, stage, sample)
    if not isinstance(wrapped, FormatError):
        raise error
    if wrapped is not error:
        error.add_note(str(wrapped.args[0]))  # the handler gets the user's own exception
    failures.failed(stage, error, sample, tolerance)
