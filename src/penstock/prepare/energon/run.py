"""`prepare` of tar shards and of JSONL files, by its Python arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.engine.options import RunOptions
from penstock.engine.run import run
from penstock.errors import ConfigError
from penstock.executors import AnyExecutor
from penstock.formats.samples.media_index import MediaFilter
from penstock.formats.samples.webdataset.splits import parse_ratio
from penstock.prepare.energon.job import PrepareJob
from penstock.prepare.energon.plan import (
    DatasetOptions,
    EnergonPlan,
    peek_webdataset,
    plan_webdataset,
    require_room,
)
from penstock.prepare.energon.request import MetadataOptions, PrepareSummary, Progress
from penstock.prepare.energon.scan import MediaReader
from penstock.prepare.jsonl_index import IndexReport, build_index
from penstock.store.place import Given, dataset_at
from penstock.store.put import require_writable


def prepare_webdataset(
    path: Given,
    *,
    split_ratio: Mapping[str, float] | Sequence[float] | str | None = None,
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None = None,
    exclude: str | None = None,
    workers: int | None = None,
    tar_index_only: bool = False,
    shuffle_tars: bool = False,
    overwrite: bool = False,
    dataset: DatasetOptions | None = None,
    sqlite: bool = True,
    media: MediaReader | None = None,
    executor: AnyExecutor = "processes",
    follow_links: bool = False,
    part: tuple[int, int] | None = None,
    finish: bool = False,
    no_work: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> PrepareSummary:
    """Write the metadata of a directory of tar shards, for Energon and for Penstock.

    Memory: a few times the names in the largest shard, and about 100 MiB, for any number of samples.

    Args:
        path: the directory.
        split_ratio: shares of train, val and test, such as `[8, 1, 1]` or `"8,1,1"`, or split → share. If this and
            `split_parts` are omitted, an existing `split.yaml` is kept.
        split_parts: split → regular expression for the names of its shards.
        exclude: leave out shards whose path matches this regular expression anywhere.
        workers: number of processes; by default one per core, or one for little data.
        tar_index_only: only write the indexes of the listed shards again.
        shuffle_tars: shuffle the shards before a ratio splits them.
        overwrite: prepare a prepared dataset again, and replace the files that the options write.
        dataset: content of `dataset.yaml`; None: an existing one is kept.
        sqlite: write `index.sqlite`, by which Energon finds samples and parts by name. `index.keys` is always written.
        media: reads metadata of media; None: metadata of unchanged shards is kept.
        executor: `"processes"`, `"inline"` (this process), another name, or an executor; see `penstock.executors`.
        follow_links: allow links that lead out of the dataset's directory.
        part, finish, no_work, restart: distributed job, see `penstock.engine.options.RunOptions`; a part consists of
            shards.
        progress: called with the number of finished shards, and the number of all.

    Raises:
        NotFound: the directory doesn't exist, or contains no shards.
        ConfigError: the dataset is already prepared, an option is invalid, or a user's file is in the way.
        FormatError: a shard is damaged, empty or compressed, or repeats a key.
        PrepareError: another run is preparing the dataset, or a process was killed.
    """
    options = RunOptions(
        executor=executor,
        workers=workers,
        part=part,
        finish=finish,
        no_work=no_work,
        restart=restart,
        overwrite=overwrite or tar_index_only,
        progress=progress,
    )
    metadata = MetadataOptions(
        split_ratio=parse_ratio(split_ratio) if isinstance(split_ratio, str) else split_ratio,
        split_parts=split_parts,
        exclude=exclude,
        dataset=dataset,
        shuffle_tars=shuffle_tars,
        tar_index_only=tar_index_only,
        sqlite=sqlite,
        media=media,
    )
    folder = dataset_at(path, follow_links=follow_links).bare()
    require_writable(folder.store, folder.path)
    require_room(folder)
    if tar_index_only and (exclude, metadata.split_ratio, split_parts, dataset) != (None, None, None, None):
        raise ConfigError("tar_index_only doesn't change the list of shards", hint="Omit exclude, splits and dataset")
    return run(PrepareJob(folder, metadata, options))


def prepare_jsonl(path: Given, *, workers: int | None = None, overwrite: bool = False) -> IndexReport:
    """Write the index `<path>.idx` of a JSONL file, as Energon does; see `penstock.prepare.jsonl_index.build_index`.

    Raises:
        NotFound: the file doesn't exist.
        Corrupt: a line is not a JSON object.
        ConfigError: the index exists and `overwrite` is false.
    """
    return build_index(path, flavor="energon", workers=workers, overwrite=overwrite)


__all__ = [
    "DatasetOptions",
    "EnergonPlan",
    "MediaFilter",
    "MediaReader",
    "PrepareSummary",
    "peek_webdataset",
    "plan_webdataset",
    "prepare_jsonl",
    "prepare_webdataset",
]
