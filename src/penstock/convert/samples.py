"""Conversion of samples by one writer, into tars, files and lines; and what all conversions of samples read back."""

from __future__ import annotations

import functools
import itertools
from contextlib import nullcontext
from typing import Protocol, runtime_checkable

from penstock.convert.groups import digest_number, write_rows
from penstock.convert.output import Advance, Output, ReadBack, Written
from penstock.convert.plan_samples import SamplePlan
from penstock.convert.rows import Dataset, batches, sample_digest, shown_digest
from penstock.engine.run import open_pool
from penstock.errors import Corrupt
from penstock.formats._manifest import Provenance


@runtime_checkable
class _Notes(Protocol):
    """A writer whose side file says what was asked for: by this an output is known again."""

    def note(self, given: Provenance) -> None: ...


_PRELOAD = ("penstock.convert.samples",)
_VERIFY_BYTES = 1 << 27


def write_samples(plan: SamplePlan, output: Output, advance: Advance) -> Written:
    """Make the output visible by one writer; only read, where a run that was killed had made it visible."""
    made = output.is_made() and plan.given.rows is not None
    groups = plan.given.groups(plan.group_rows)
    samples = itertools.chain.from_iterable(group.read(plan.given.rows, plan.batch_rows) for group in groups)

    def told(count: int) -> None:
        if count % plan.batch_rows == 0:
            advance(count, "")

    with nullcontext() if made else output.create() as writer:
        count, total = write_rows(samples, plan.maker, writer, output.dataset.format, told)
        if isinstance(writer, _Notes):
            noted = {**plan.recorded["options"], "digest": shown_digest(total), "samples": count}
            writer.note(Provenance(inputs=plan.recorded["inputs"], options=noted))
        manifest = None if writer is None else output.publish(writer.commit)
    return Written(shown_digest(total), manifest, count)


def verify_samples(plan: SamplePlan, output: Output, written: Written, advance: Advance) -> ReadBack:
    """Read the output back, count and compare.

    Raises:
        Corrupt: it reads back differently.
    """
    rows = output.dataset.rows()
    step = max(1, _VERIFY_BYTES // max(1, plan.mean_bytes))
    ranges = [(start, min(len(rows), start + step)) for start in range(0, len(rows), step)]
    one = functools.partial(_digest_of_range, output.dataset, plan.batch_rows)
    total, names = 0, set[str]()
    reads = [output.place]
    with open_pool(plan.how, _PRELOAD, most=len(ranges), reads=reads) as pool:
        for (_, stop), (part, fields) in zip(ranges, pool.map(one, ranges), strict=True):
            total += part
            names |= fields
            advance(stop, f"of {len(rows):,} read back")
    digest = shown_digest(total)
    for what, found, expected in (
        ("the converted dataset has a different number of samples", len(rows), written.samples),
        ("the converted dataset differs from the source when read back", digest, written.digest),
    ):
        if found != expected:
            raise Corrupt(what, path=output.place.path, found=found, expected=expected)
    size_bytes = 0 if written.manifest is None else written.manifest.size_bytes
    return ReadBack(len(rows), digest, size_bytes, parts=frozenset(names))


def _digest_of_range(dataset: Dataset, step: int, found: tuple[int, int]) -> tuple[int, set[str]]:
    """The sum of digests of a range of rows, and the names of their fields."""
    rows, (start, stop) = dataset.rows(), found
    total, names = 0, set[str]()
    for index, row in enumerate(itertools.chain.from_iterable(batches(rows, start, stop, step)), start):
        total += sample_digest(digest_number(dataset.format, index), row)
        names.update(row)
    return total, names
