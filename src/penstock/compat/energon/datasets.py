"""`get_train_dataset` and related functions: open a path as a stream of encoded samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.compat.energon.build import Shape, checked, train, validation
from penstock.compat.energon.encoder import DefaultTaskEncoder
from penstock.compat.energon.epathlib import EPath
from penstock.compat.energon.factories import BaseCoreDatasetFactory, LoadedDatasetList, loaded_datasets
from penstock.compat.energon.opening import Opening, Path, opened_by, text_of
from penstock.compat.energon.walks import SavableDataset
from penstock.compat.energon.work import AnyEncoder
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.unused import say_unused
from penstock.errors import ConfigError
from penstock.recipe.metadataset import read_metadataset, split_names
from penstock.recipe.tree import Leaf, Node, leaves


def get_train_dataset(
    path: Path | DatasetLoader,
    *,
    split_part: str = "train",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = None,
    max_samples_per_sequence: int | None = None,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: AnyEncoder | None = None,
    repeat: bool = True,
    lanes: int | None = None,
    **options: Any,
) -> SavableDataset[Any]:
    """Open the training data of a prepared WebDataset, a JSONL file, or a metadataset.

    Samples come in Penstock's order: all samples of a dataset are permuted in each epoch, whatever the number of ranks
    and workers. `shuffle_buffer_size` and `max_samples_per_sequence` are therefore ignored, with a log message.

    Args:
        path: directory, file or URL.
        split_part: the split.
        worker_config: rank, world size and workers.
        batch_size: samples per batch of a rank; None delivers single samples.
        batch_drop_last: with `repeat=False`, drop a last batch that isn't full on all ranks.
        packing_buffer_size: number of samples passed to `select_samples_to_pack`.
        shuffle_buffer_size: not needed.
        max_samples_per_sequence: not needed.
        virtual_epoch_length: batches of a rank after which an iteration ends; the next one continues.
        shuffle_over_epochs_multiplier: number of copies of a dataset that are shuffled together; -1 approximates
            drawing with replacement; None: no shuffling. Values in a metadataset multiply it; a `blend_epochized` is
            permuted as a whole.
        task_encoder: the task encoder.
        repeat: False ends an iteration after one epoch; the next iteration is the next epoch. The last batch is filled
            up, so that all ranks get the same number of batches; the loader's `valid` marks the samples that count.
        lanes: for packing, grouping and generators: a multiple of every world size that the run may have. By default
            the number of workers on all ranks. If given, skipped samples aren't replaced.
        options: `dataset_config`, `split_config`, `joiners`, `sample_types`, `trust`, `follow_links`; `sample_type`, a
            class that all samples must have before they are cooked. `parallel_shard_iters` is ignored, with a log
            message.

    Raises:
        ConfigError: options don't match each other, or an option is unknown.

    Examples:
        >>> from penstock.compat.energon import WorkerConfig, get_savable_loader, get_train_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_train_dataset("pictures", worker_config=config, batch_size=2)
        >>> loader = get_savable_loader(dataset)
        >>> batch = next(iter(loader))
        >>> len(batch.caption), batch.image.shape
        (2, torch.Size([2, 3, 6, 8]))
    """
    asked = {"shuffle_buffer_size": shuffle_buffer_size, "max_samples_per_sequence": max_samples_per_sequence}
    say_unused("get_train_dataset", "all samples of a dataset are reshuffled in each epoch", asked, {})
    encoder = _encoder(task_encoder)
    given, opening = _opened_by(path, options, split_part)
    opening = replace(opening, multiplier=checked(shuffle_over_epochs_multiplier))
    node = opening.node(given)
    if encoder.is_overridden("build_train_datasets"):
        if lanes is not None:
            raise ConfigError("a custom build_train_datasets and lanes= can't be combined")
        loaded = loaded_datasets(node, opening, worker_config, training=True)
        shape = Shape(worker_config, batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length)
        return train_by_hook(encoder, loaded, shape, shuffle_buffer_size, repeat)
    shape = Shape(worker_config, batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length)
    return train(node, opening, encoder, shape, repeat, lanes)


def train_by_hook(
    encoder: AnyEncoder, loaded: LoadedDatasetList, shape: Shape, shuffle_buffer_size: int | None, repeat: bool
) -> SavableDataset[Any]:
    """Call a task encoder's own `build_train_datasets` with all arguments."""
    return encoder.build_train_datasets(
        datasets=loaded.datasets,
        worker_config=shape.config,
        batch_size=shape.batch_size,
        batch_drop_last=shape.drop_last,
        packing_buffer_size=shape.packing,
        virtual_epoch_length=shape.batches,
        shuffle_buffer_size=shuffle_buffer_size,
        blend_mode=loaded.blend_mode,
        repeat=repeat,
    )


def get_val_dataset(
    path: Path | DatasetLoader,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: AnyEncoder | None = None,
    **options: Any,
) -> SavableDataset[Any]:
    """Open the validation data: each sample once, in stored order, one dataset of a blend after another.

    All ranks get the same number of batches. The last one is filled up with samples from the beginning, and the
    loader's `valid` marks the samples that count.

    Args:
        path: directory, file or URL.
        split_part: the split.
        worker_config: rank, world size and workers.
        batch_size: samples per batch of a rank; None delivers single samples.
        batch_drop_last: drop a last batch that isn't full on all ranks.
        packing_buffer_size: number of samples passed to `select_samples_to_pack`; fewer in the last buffer of a worker.
            The number of packs isn't known in advance, so ranks may get different numbers: see `limit`.
        limit: number of batches per rank.
        task_encoder: the task encoder.
        options: `dataset_config`, `split_config`, `joiners`, `sample_types`, `trust`, `follow_links`, `sample_type`;
            see `get_train_dataset`.

    Raises:
        ConfigError: options don't match each other, or an option is unknown.

    Examples:
        >>> from penstock.compat.energon import WorkerConfig, get_loader, get_val_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = get_val_dataset("pictures", split_part="train", worker_config=config, batch_size=4)
        >>> [batch.caption for batch in get_loader(dataset)]
        [['picture 0', 'picture 1', 'picture 2', 'picture 3'], ['picture 4', 'picture 5']]
    """
    given, opening = _opened_by(path, options, split_part)
    shape = Shape(worker_config, batch_size, batch_drop_last, packing_buffer_size, limit or 0)
    return _validated(opening.node(given), opening, _encoder(task_encoder), shape)


def _validated(node: Node, opening: Opening, encoder: AnyEncoder, shape: Shape) -> SavableDataset[Any]:
    if not encoder.is_overridden("build_val_datasets"):
        return validation(node, opening, encoder, shape)
    return encoder.build_val_datasets(
        datasets=loaded_datasets(node, opening, shape.config, training=False).datasets,
        worker_config=shape.config,
        batch_size=shape.batch_size,
        batch_drop_last=shape.drop_last,
        packing_buffer_size=shape.packing,
        limit=shape.batches or None,
    )


def get_val_datasets(
    path: Path | DatasetLoader,
    *,
    split_part: str = "val",
    worker_config: WorkerConfig,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: AnyEncoder | None = None,
    **options: Any,
) -> list[tuple[SavableDataset[Any], BaseCoreDatasetFactory]]:
    """Open a validation dataset for each dataset of a metadataset, with its origin; see `get_val_dataset`.

    Examples:
        >>> from penstock.compat.energon import WorkerConfig, get_val_datasets
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> [(dataset, origin)] = get_val_datasets("metadataset.yaml", worker_config=config, batch_size=4)
        >>> len(dataset), origin.split_part
        (2, 'train')
    """
    given, opening = _opened_by(path, options, split_part)
    shape = Shape(worker_config, batch_size, batch_drop_last, packing_buffer_size, limit or 0)
    found = loaded_datasets(opening.node(given), opening, worker_config, training=False)
    return [
        (_validated(one.dataset.node, opening, _encoder(task_encoder), shape), one.dataset) for one in found.datasets
    ]


def _encoder(given: AnyEncoder | None) -> AnyEncoder:
    return DefaultTaskEncoder[Any, Any, Any, Any]() if given is None else given


def _opened_by(path: Path | DatasetLoader, options: Mapping[str, Any], split: str) -> tuple[str, Opening]:
    if isinstance(path, DatasetLoader):
        return opened_by(path.path, {**path.options, **options}, split)
    return opened_by(path, options, split)


@dataclass(frozen=True, slots=True)
class DatasetLoader:
    """Result of `load_dataset`: a path with the options to open it. Accepted in place of a path.

    Examples:
        >>> from penstock.compat.energon import DatasetLoader, load_dataset
        >>> loader = load_dataset("metadataset.yaml")
        >>> isinstance(loader, DatasetLoader)
        True
        >>> [(leaf.path.rpartition("/")[2], leaf.split) for leaf in loader.leaves("val")]
        [('pictures', 'train')]
    """

    path: EPath
    options: Mapping[str, Any]

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        **options: Any,
    ) -> LoadedDatasetList:
        """Return the datasets of a split, with their weights or repetitions."""
        given, opening = _opened_by(self, options, split_part)
        opening = replace(opening, multiplier=checked(shuffle_over_epochs_multiplier))
        return loaded_datasets(opening.node(given), opening, worker_config, training=training, subflavors=subflavors)

    def get_dataset(self, **options: Any) -> BaseCoreDatasetFactory:
        """Return the only dataset of a split; see `get_datasets`."""
        found = self.get_datasets(**dict[str, Any]({"split_part": "train"}, **options)).datasets
        if len(found) != 1:
            raise ConfigError("several datasets", path=str(self.path), found=len(found), hint="Use get_datasets")
        return found[0].dataset

    def leaves(self, split_part: str = "train") -> list[Leaf]:
        """Return the datasets of one split, with everything they inherit, without opening them."""
        return list(leaves(_opened_by(self, {}, split_part)[1].node(str(self.path))))

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """See `traverse_metadataset`."""
        return traverse_metadataset(self.path, split_part=split_part)


@dataclass
class TraversedDatasetReference:
    """A dataset of a metadataset.

    Attributes:
        path: path of the dataset.
        split_part: its split.
        aux: name → path of an auxiliary dataset or folder.
        subflavors: subflavors of all levels above it.
    """

    path: EPath
    split_part: str
    aux: dict[str, EPath]
    subflavors: dict[str, Any]


def traverse_metadataset(path: Path, *, split_part: str = "train") -> list[TraversedDatasetReference]:
    """List the datasets of one split of a metadataset, with everything they inherit, without opening them.

    Examples:
        >>> from penstock.compat.energon import traverse_metadataset
        >>> [found] = traverse_metadataset("metadataset.yaml", split_part="val")
        >>> found.path.name, found.split_part
        ('pictures', 'train')
    """
    return [
        TraversedDatasetReference(
            EPath(leaf.path),
            leaf.split,
            {name: EPath(folder) for name, (folder, _) in leaf.aux.items()},
            dict(leaf.subflavors),
        )
        for leaf in leaves(read_metadataset(text_of(path), split_part))
    ]


def load_dataset(path: Path, **options: Any) -> DatasetLoader:
    """Open a dataset or metadataset for inspection, or for `get_train_dataset` and `get_val_dataset`.

    Examples:
        >>> from penstock.compat.energon import WorkerConfig, load_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = load_dataset("pictures").get_dataset(training=False, worker_config=config)
        >>> type(dataset).__name__, len(dataset)
        ('StandardWebdatasetFactory', 6)
    """
    return DatasetLoader(EPath(_opened_by(path, options, "train")[0]), options)


DatasetLoaderInterface = DatasetLoader


def prepare_metadataset(path: Path) -> None:
    """Read all splits of a metadataset, to find mistakes. Joins are computed at first use, and cached.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: it isn't a metadataset.

    Examples:
        >>> from penstock.compat.energon import prepare_metadataset
        >>> prepare_metadataset("metadataset.yaml")  # raises an error if there is a mistake in it
    """
    for split in split_names(text_of(path)):
        read_metadataset(text_of(path), split)
