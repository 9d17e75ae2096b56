"""What `prepare` writes, and its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock._secrets import redacted_repr
from penstock.abc import Store
from penstock.engine.options import RunOptions
from penstock.formats.samples.webdataset.nvmeta import Info, meta_path
from penstock.prepare.energon.plan import DatasetOptions, EnergonPlan, MetaFiles
from penstock.prepare.energon.scan import MediaReader
from penstock.store.place import Place
from penstock.store.unfinished import Once

Progress = Callable[[int, int], None]
"""Called with the number of finished shards, and the number of all."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """Options of `prepare_webdataset` that determine the metadata; described there."""

    split_ratio: Mapping[str, float] | Sequence[float] | str | None
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None
    exclude: str | None
    dataset: DatasetOptions | None
    shuffle_tars: bool
    tar_index_only: bool
    sqlite: bool
    media: MediaReader | None

    def recorded(self) -> dict[str, Any]:
        """Return the options as plain JSON, by their names on the command line."""
        media = self.media
        always = {
            "--no-sqlite": not self.sqlite,
            "--media-metadata": None if media is None else [media.filter.strategy, media.filter.patterns, media.depth],
        }
        if self.tar_index_only:
            return {"--tar-index-only": True, "--overwrite": True, **always}
        options = {
            "--split-ratio": self.split_ratio,
            "--split-parts": self.split_parts,
            "--exclude": self.exclude,
            "--shuffle-tars": self.shuffle_tars,
            "dataset.yaml": self.dataset,
            **always,
        }
        return msgspec.json.decode(msgspec.json.encode(options))


@dataclass(frozen=True, slots=True)
class Request:
    """What a run writes; all of it is checked.

    Attributes:
        source: the dataset and its shards.
        meta: the files of `.nv-meta` that a user may edit.
        before: the list of shards, if only their indexes are written.
        metadata: options that determine the metadata.
        run: options of the run.
        once: identifies the run, so that a re-run knows its output; None if only indexes are written.
    """

    source: EnergonPlan
    meta: MetaFiles
    before: Info | None
    metadata: MetadataOptions
    run: RunOptions
    once: Once[PrepareSummary] | None

    @property
    def store(self) -> Store:
        """The store of the dataset."""
        return self.source.dataset.store

    @property
    def path(self) -> str:
        """Path of the dataset."""
        return self.source.path

    def meta_file(self, name: str) -> Place:
        """Return a file of `.nv-meta`."""
        return Place(self.store, meta_path(self.path, name))
