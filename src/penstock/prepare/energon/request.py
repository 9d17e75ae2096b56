"""What a preparation is asked for, and what it says that it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock._secrets import redacted_repr
from penstock.abc import Store
from penstock.engine.options import RunOptions
from penstock.executors import AnyExecutor
from penstock.formats.samples.webdataset.nvmeta import Info, meta_path
from penstock.prepare.energon.plan import DatasetOptions, EnergonPlan, MetaFiles
from penstock.prepare.energon.scan import MediaReader
from penstock.store.place import Place
from penstock.store.unfinished import Once

Progress = Callable[[int, int], None]
"""Called with the number of finished shards, and of all."""


@redacted_repr
@dataclass(frozen=True, slots=True)
class PrepareSummary:
    """Result of `prepare` for tar shards.

    Attributes:
        path: directory of the dataset.
        shard_counts: shard → number of samples.
        num_samples: total number of samples, with `num_parts` parts.
        size_bytes: size of all shards.
        splits: split → numbers of shards and samples, if splits were made.
        num_reused: shards already finished by an earlier run or another worker.
        uuid: content of `index.uuid`.
        wrote: new or changed files, by their paths in the directory.
        warnings: warnings about the data.
        part: `(i, n)` if this was part i of a distributed job.
        missing: parts that aren't done, with `no_work`.
        was_complete: the dataset was already prepared in this way.
    """

    path: str
    shard_counts: dict[str, int]
    num_samples: int
    num_parts: int
    size_bytes: int
    splits: dict[str, tuple[int, int]]
    num_reused: int
    uuid: str
    wrote: tuple[str, ...]
    warnings: tuple[str, ...]
    part: tuple[int, int] | None = None
    missing: tuple[int, ...] = ()
    was_complete: bool = False


@dataclass(frozen=True, slots=True)
class How:
    """How the work is done, whatever it is."""

    sqlite: bool
    media: MediaReader | None
    workers: int | None
    executor: AnyExecutor
    progress: Progress | None
    sharing: RunOptions

    def recorded(self) -> dict[str, Any]:
        """What of it decides the files, as plain JSON, by the names of options."""
        media = (
            None if self.media is None else [self.media.filter.strategy, self.media.filter.patterns, self.media.depth]
        )
        return {"--no-sqlite": not self.sqlite, "--media-metadata": media}


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of a new list of shards."""

    split_ratio: Mapping[str, float] | Sequence[float] | str | None
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None
    exclude: str | None
    dataset: DatasetOptions | None
    shuffle_tars: bool
    overwrite: bool

    def recorded(self, how: How) -> dict[str, Any]:
        """What decides the files, as plain JSON, by the names of options."""
        asked = {
            "--split-ratio": self.split_ratio,
            "--split-parts": self.split_parts,
            "--exclude": self.exclude,
            "--shuffle-tars": self.shuffle_tars,
            "dataset.yaml": self.dataset,
            **how.recorded(),
        }
        return msgspec.json.decode(msgspec.json.encode(asked))


@dataclass(frozen=True, slots=True)
class Request:
    """What one run is to do, all of it checked."""

    plan: EnergonPlan
    meta: MetaFiles
    before: Info | None
    how: How
    options: dict[str, Any]
    once: Once[PrepareSummary] | None

    @property
    def store(self) -> Store:
        """Where the dataset is."""
        return self.plan.dataset.store

    def meta_file(self, name: str) -> Place:
        """A file of `.nv-meta`."""
        return Place(self.store, meta_path(self.plan.path, name))
