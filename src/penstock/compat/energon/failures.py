"""Count samples that functions skip or fail on, and end the run if too many fail."""

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
    """Counts of skipped and failed samples; ends the run if too many of one source fail in a row.

    Attributes:
        counts: `"skipped"`, or the name of a stage → number of samples.
        in_a_row: stage and dataset → number of consecutive failures. Datasets count separately, so that a dataset in
            which all samples fail ends the run, regardless of other datasets in the blend.
        first: description of the first failure, or None.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self.in_a_row: Counter[tuple[str, str | None]] = Counter()
        self.first: str | None = None
        self.counts: Counter[str] = Counter()

    def __reduce__(self) -> tuple[object, ...]:
        return (Failures, (self._config,))

    def passed(self, stage: str, sample: Any) -> None:
        """Reset the count of failures in a row of the dataset that `sample` comes from."""
        if self.in_a_row:
            self.in_a_row.pop((stage, _dataset_of(sample)), None)

    def skipped(self) -> None:
        with self._lock:
            self.counts["skipped"] += 1

    def failed(self, stage: str, error: Exception, sample: Any, tolerance: int | None) -> None:
        """Record that a sample failed in a stage.

        Raises:
            FatalSampleError: too many consecutive samples failed.
        """
        dataset = _dataset_of(sample)
        with self._lock:
            self.counts[stage] += 1
            self.in_a_row[stage, dataset] += 1
            in_a_row = self.in_a_row[stage, dataset]
            if self.first is None:
                self.first = f"{f'{dataset}: ' if dataset else ''}{stage}: {said(error)}"
        self._config.global_error_handler(error, sample, sources_of(sample))
        if tolerance and in_a_row >= tolerance:
            raise FatalSampleError(
                f"{stage} failed {in_a_row} times in a row",
                path=dataset,
                found=said(error),
                hint="Check the function or the data",
            ) from error

    def require_any_passed(self) -> None:
        """Raise an error at the end of a pass without samples, if that is because samples failed.

        Raises:
            FatalSampleError: naming the number of failures, and the first one.
        """
        failed = self.counts.total() - self.counts["skipped"]
        if failed:
            raise FatalSampleError(
                "no samples are left in this pass",
                found=f"{failed:,} failed, the first one: {self.first}",
                hint="Check the function or the data",
            )


def _dataset_of(sample: Any) -> str | None:
    """Return the path of the first dataset that a sample, or a list of them, comes from, if it is known."""
    sources = sources_of(sample)
    return str(sources[0].dataset_path) if sources else None


def lost(failures: Failures, stage: str, error: Exception, sample: Any, tolerance: int | None) -> None:
    """Count a sample that a function skipped or failed on; raise errors that aren't the sample's fault."""
    if isinstance(error, SkipSample):
        failures.skipped()
        return
    wrapped = as_cook_error(error, stage, sample[0] if isinstance(sample, list) and sample else sample)
    if not isinstance(wrapped, FormatError):
        raise error
    if wrapped is not error:
        error.add_note(str(wrapped.args[0]))  # the handler gets the user's own exception
    failures.failed(stage, error, sample, tolerance)
