"""`get_train_dataset` and related functions: open a path as a stream of encoded samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast, is_typeddict

from penstock._digest import derive_key
from penstock._kinds import is_stream
from penstock.abc import Source, Stream
from penstock.compat.energon.encoder import DefaultTaskEncoder
from penstock.compat.energon.passes import Shares
from penstock.compat.energon.samples import TYPES
from penstock.compat.energon.stages import Encoded, Filled, Lanes
from penstock.compat.energon.work import AnyEncoder, Work
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.unused import say_unused
from penstock.cook import Crude, CrudeSample
from penstock.errors import ConfigError
from penstock.formats._excluding import stored
from penstock.formats.samples.webdataset.sample_types import SampleType
from penstock.formats.samples.webdataset.typed import TypedSource
from penstock.mix.join import JoinedSource
from penstock.order import Sequential
from penstock.recipe.build import Builder, multiplied, shuffled
from penstock.recipe.code import FROM_JOINED, Merge, make_code
from penstock.recipe.leaf import JSONL
from penstock.recipe.metadataset import read_metadataset
from penstock.recipe.tree import Joined, Leaf, Mixed, Node, leaves
from penstock.types import OpenOptions, SourceInfo

_METADATASET = (".yaml", ".yml")
_GROUP_WINDOW = 1024

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Opening:
    """Options with which datasets are opened.

    Attributes:
        split: of the dataset or metadataset.
        dataset_config: file in `.nv-meta` in the place of `dataset.yaml`.
        split_config: file in `.nv-meta` in the place of `split.yaml`.
        joiners: see `penstock.open_metadataset`.
        sample_types: see `penstock.open_metadataset`.
        trust, follow_links: see `penstock.open_metadataset`.
        sample_type: class that the samples of every dataset must be of; None for any.
    """

    split: str
    dataset_config: str | None = None
    split_config: str | None = None
    joiners: Mapping[str, Any] | None = None
    sample_types: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trust: bool = False
    follow_links: bool = False
    sample_type: Any = None

    def node(self, path: str) -> Node:
        """The node of a path: a metadataset's tree, or one dataset."""
        if path.endswith(_METADATASET):
            if self.dataset_config is not None or self.split_config is not None:
                raise ConfigError("a metadataset names its own configs", path=path, hint="Say them in the file")
            return read_metadataset(path, self.split)
        if path.endswith(JSONL) and (self.dataset_config is not None or self.split_config is not None):
            raise ConfigError("a JSONL has no configs", path=path)
        return Leaf(path, self.split, dataset_config=self.dataset_config, split_config=self.split_config)


@dataclass(frozen=True)
class EnergonDataset:
    """The result of `get_train_dataset` and `get_val_dataset`, for `get_loader` and `get_savable_loader`.

    Attributes:
        data: `Filled`, a stream of positions, or `Lanes`.
        encoder: the task encoder.
        worker_config: rank, world size and workers.
        batch_size: samples of a batch of a rank; None delivers single samples.
        batch_drop_last: leaves out a last batch that is not full.
        size: samples of a finite pass; None for an endless stream.
        batches: after so many batches of a rank an iteration ends, and the next one continues; 0 for no end.
        starts_anew: whether each iteration begins at the first sample: validation.
        sources: what an epoch reads: its samples are theirs together.
    """

    data: Filled | Lanes
    encoder: AnyEncoder
    worker_config: WorkerConfig
    batch_size: int | None
    batch_drop_last: bool
    size: int | None
    batches: int
    starts_anew: bool
    sources: tuple[Source[Any], ...] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return str(self.data)

    def __len__(self) -> int:
        """Batches of this rank in an iteration; of one epoch where that has no end.

        Of an endless one they are counted as Energon does: each worker has its share of the epoch's samples, and ends
        with a batch that may be short. What packing, grouping and generators make of a sample is not known beforehand:
        a sample counts as one, or as a group of its own.
        """
        world, size = self.worker_config.world_size, self.batch_size or 1
        if self.size is not None:
            batches = len(self.shares(self.size))
            return min(batches, self.batches or batches)
        if self.batches:
            return self.batches
        size = 1 if self.encoder.is_overridden("batch_group_criterion") else size
        workers = world * max(1, self.worker_config.num_workers)
        share, more = divmod(sum(map(len, self.sources)), workers)
        mine = range(self.worker_config.rank, workers, world)  # what is left over goes round the ranks
        return sum(_parts(share + (worker < more), size, self.batch_drop_last) for worker in mine)

    @property
    def grouped(self) -> bool:
        """Whether what is read are groups, each a batch."""
        return isinstance(self.data, Lanes) and self.encoder.is_overridden("batch_group_criterion")

    def filled(self) -> Filled:
        """The stream of positions of which a pass is read."""
        return cast(Filled, self.data)

    def shares(self, left: int) -> Shares:
        """How so many samples that are left of a pass are cut into batches."""
        config = self.worker_config
        shape = (config.world_size, max(1, config.num_workers), self.batch_size or 1, self.batch_drop_last)
        return Shares(left, *shape)


def _parts(samples: int, size: int, drop_last: bool) -> int:
    return samples // size if drop_last else -(-samples // size)


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
) -> EnergonDataset:
    """The training data of a prepared WebDataset, a JSONL, or a metadataset.

    Samples come in Penstock's order: all samples of a dataset are permuted again each epoch, whatever the number of
    ranks and workers. So `shuffle_buffer_size` and `max_samples_per_sequence` change nothing, which is logged.

    Args:
        path: folder, file or URL.
        split_part: the split.
        worker_config: rank, world size and workers.
        batch_size: samples of a batch of a rank; None delivers single samples.
        batch_drop_last: with `repeat=False`, leave out a last batch that is not full on all ranks.
        packing_buffer_size: samples that `select_samples_to_pack` chooses from.
        shuffle_buffer_size: not needed.
        max_samples_per_sequence: not needed.
        virtual_epoch_length: batches of a rank after which an iteration ends; the next one continues.
        shuffle_over_epochs_multiplier: so many copies of a dataset shuffled together; -1: as good as with replacement;
            None: no shuffling. What a metadataset says multiplies; of a `blend_epochized` the whole is permuted.
        task_encoder: hooks.
        repeat: False ends an iteration after one epoch; the next one is the next epoch. The last batch is filled up,
            so that all ranks get the same number: the loader's `valid` says which samples count.
        lanes: of packing, grouping and generators: a multiple of every world size that the run may have. By default
            as many as there are workers on all ranks. Given, samples that are skipped leave no stand-in.
        options: `dataset_config`, `split_config`, `joiners`, `sample_types`, `trust`, `follow_links`; `sample_type`,
            a class that all samples must be of before they are cooked;
            `parallel_shard_iters` changes nothing, which is logged.

    Raises:
        ConfigError: options that don't fit each other, or a name that is not known.
    """
    asked = {"shuffle_buffer_size": shuffle_buffer_size, "max_samples_per_sequence": max_samples_per_sequence}
    say_unused("get_train_dataset", "all samples of a dataset are permuted anew each epoch", asked, {})
    given, opening = _opened_by(path, options, split_part)
    work = Work(_encoder(task_encoder), worker_config, batch_size, packing_buffer_size is not None)
    workers = worker_config.world_size * max(1, worker_config.num_workers)
    in_lanes = _needs_lanes(work, packing_buffer_size) or lanes is not None
    count = (workers if lanes is None else lanes) if in_lanes else 1
    node, multiplier = opening.node(given), _checked(shuffle_over_epochs_multiplier)
    found, sources = _open(node, opening, work.encoder, "train", count, worker_config.seed_offset, multiplier)
    size = None if repeat else _size_of_pass(found, in_lanes, given)
    stream = found if is_stream(found) else _shuffled(found, node, multiplier, count, worker_config.seed_offset)
    data = _encoded(stream, work, in_lanes, batch_size, packing_buffer_size)
    shape = (worker_config, batch_size, batch_drop_last, size, virtual_epoch_length)
    return EnergonDataset(data, work.encoder, *shape, starts_anew=False, sources=sources)


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
) -> EnergonDataset:
    """The validation data: each sample once, in the order of the data, one dataset of a blend after another.

    All ranks get the same number of batches. The last one is filled up with samples from the beginning, and the
    loader's `valid` says which samples count.

    Args:
        path: folder, file or URL.
        split_part: the split.
        worker_config: rank, world size and workers.
        batch_size: samples of a batch of a rank; None delivers single samples.
        batch_drop_last: leave out the last batch where it is not full on all ranks.
        packing_buffer_size: not offered: packs have no positions, so a pass over them has no end that ranks share.
        limit: batches of a rank.
        task_encoder: hooks; its functions give one sample for one.
        options: `dataset_config`, `split_config`, `joiners`, `sample_types`, `trust`, `follow_links`, `sample_type`;
            see `get_train_dataset`.

    Raises:
        ConfigError: options that don't fit each other, or a name that is not known.
    """
    given, opening = _opened_by(path, options, split_part)
    work = Work(_encoder(task_encoder), worker_config, batch_size)
    shape = (batch_size, batch_drop_last, packing_buffer_size, limit)
    return _validation(opening.node(given), opening, work, worker_config, *shape)


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
) -> list[tuple[EnergonDataset, SourceInfo]]:
    """A validation dataset for each dataset of a metadataset, with where it comes from; see `get_val_dataset`."""
    given, opening = _opened_by(path, options, split_part)
    shape = (batch_size, batch_drop_last, packing_buffer_size, limit)
    made: list[tuple[EnergonDataset, SourceInfo]] = []
    for number, leaf in enumerate(leaves(opening.node(given))):
        work = Work(_encoder(task_encoder), worker_config, batch_size)
        dataset = _validation(leaf, opening, work, worker_config, *shape)
        made.append((dataset, SourceInfo(leaf.path, number, leaf.split, ())))
    return made


@dataclass(frozen=True, slots=True)
class DatasetLoader:
    """The result of `load_dataset`: a path with the options to open it; accepted wherever a path is."""

    path: str
    options: Mapping[str, Any]

    def leaves(self, split_part: str = "train") -> list[Leaf]:
        """The datasets of one split."""
        return list(leaves(_opened_by(self, {}, split_part)[1].node(self.path)))


def traverse_metadataset(path: Path, *, split_part: str = "train") -> list[Leaf]:
    """The datasets of one split of a metadataset, with all that they inherit; opens none of them."""
    return list(leaves(read_metadataset(os.fspath(path), split_part)))


def load_dataset(path: Path, **options: Any) -> DatasetLoader:
    """Open a dataset or metadataset for inspection, or for `get_train_dataset` and `get_val_dataset`."""
    return DatasetLoader(_opened_by(path, options, "train")[0], options)


_DECODER = "Say it by the task encoder: decoder = SampleDecoder(image_decode=…), or decoder = None for bytes"
_ELSEWHERE = {
    **dict.fromkeys(("auto_decode", "image_decode", "av_decode", "video_decode_audio"), _DECODER),
    "handler": "Say it by WorkerConfig(global_error_handler=…)",
}
"""Old options → where they are said today."""

_OPTIONS = (
    "split_part", "dataset_config", "split_config", "joiners", "sample_types", "trust", "follow_links", "sample_type",
)  # fmt: skip


def _opened_by(path: Path | DatasetLoader, options: Mapping[str, Any], split: str) -> tuple[str, Opening]:
    """Path, and how it is opened."""
    given = {**path.options, **options} if isinstance(path, DatasetLoader) else dict(options)
    iters = {"parallel_shard_iters": given.pop("parallel_shard_iters", None)}
    say_unused("the dataset", "every sample is addressed by itself", iters, {})
    for name in given:
        if name not in _OPTIONS:
            hint = _ELSEWHERE.get(name)
            raise ConfigError("no such option", found=name, expected=", ".join(_OPTIONS), hint=hint)
    opening = Opening(given.pop("split_part", split))
    return os.fspath(path.path if isinstance(path, DatasetLoader) else path), replace(opening, **given)


def _encoder(given: AnyEncoder | None) -> AnyEncoder:
    return DefaultTaskEncoder[Any, Any, Any, Any]() if given is None else given


def _open(
    node: Node, opening: Opening, encoder: AnyEncoder, mode: Any, lanes: int, seed: int, multiplier: int | None = 1
) -> tuple[Source[Any] | Stream[Any], tuple[Source[Any], ...]]:
    """One epoch as a source, or a blend as a stream, of crude samples that know their dataset; what it reads."""
    decoder = encoder.decoder
    options = OpenOptions(
        trust=opening.trust,
        follow_links=opening.follow_links,
        image="bytes" if decoder is None else decoder.image_decode,
        trust_parts=decoder is not None and decoder.trust,
    )
    how = None if decoder is None else decoder.options
    made: list[Source[Any]] = []

    def crude(source: Source[Any], below: Any) -> Crude:
        kind, sample_class = _kind_of_join(source, below) if isinstance(below, Joined) else _kind_of(source)
        _require_type(opening.sample_type, kind, sample_class, getattr(below, "path", None))
        # A JSONL has parsed its only part; what another source has decoded is not bytes any more.
        parsed = isinstance(below, Leaf) and below.path.endswith(JSONL)
        one = Crude(
            source,
            subflavors=below.subflavors,
            decode=how,
            decode_parts=not parsed,
            kind=kind,
            sample_class=sample_class,
        )
        made.append(one)
        return one

    code = make_code(opening.joiners, opening.sample_types, opening.trust, opening.follow_links)
    found = Builder(code, options, lanes, crude, multiplier).build(node, mode, derive_key(seed, "energon") >> 12)
    return found, tuple(made) if is_stream(found) else (cast(Source[Any], found),)


def _require_type(wanted: Any, kind: str | None, sample_class: Any, path: str | None) -> None:
    """Refuse samples that are not of the required class."""
    found = CrudeSample if kind is None else sample_class or TYPES.get(kind)
    if wanted is not None and not (isinstance(found, type) and issubclass(found, wanted)):
        name = kind if found is None else found.__name__
        raise ConfigError("samples of another type", path=path, found=name, expected=wanted.__name__)


def _typed_below(source: Any) -> TypedSource | None:
    while not isinstance(source := stored(source), TypedSource):
        children = source.children()
        source = children.get("source")
        if source is None:
            return None
    return source


def _kind_of(source: Any) -> tuple[str | None, Any]:
    """Name and class of the type that the samples of a dataset have already; None for crude ones."""
    typed = _typed_below(source)
    return (None, None) if typed is None or typed.sample_type is None else _of_type(typed.sample_type)


def _of_type(one: SampleType) -> tuple[str, Any]:
    return one.name, None if one.cls is None or is_typeddict(one.cls) else one.cls


def _kind_of_join(source: Any, node: Joined) -> tuple[str | None, Any]:
    """As `_kind_of`: what is made of typed samples needs no cooking; the class that joins, else a name of no type."""
    while not isinstance(source, JoinedSource):
        source = source.children()["source"]
    if any(_kind_of(member)[0] is None for member in source.children().values()):
        return None, None
    if isinstance(source.joiner, Merge):
        return _of_type(source.joiner.sample_type)
    name = node.joiner.removesuffix(FROM_JOINED).rpartition(".")[2] if node.joiner.endswith(FROM_JOINED) else "joined"
    return name, None


def _shuffled(found: Any, node: Node, multiplier: int | None, lanes: int, seed: int) -> Stream[Any]:
    own = 1 if isinstance(node, Mixed) else node.multiplier
    return shuffled(found, multiplied(multiplier, own), derive_key(seed, "energon") >> 12, lanes)


def _checked(multiplier: int | None) -> int | None:
    if multiplier is not None and (multiplier < -1 or multiplier == 0):
        expected = "a number of copies, -1 or None"
        raise ConfigError("no such shuffle_over_epochs_multiplier", found=multiplier, expected=expected)
    return multiplier


def _size_of_pass(found: Source[Any] | Stream[Any], in_lanes: bool, path: str) -> int:
    """Samples of one epoch, which must be known for `repeat=False`."""
    if is_stream(found) or in_lanes:
        raise ConfigError(
            "repeat=False needs samples that can be counted",
            path=path,
            found="packing, grouping, a generator or lanes=" if in_lanes else "a weighted blend",
            hint="Use virtual_epoch_length",
        )
    return len(cast(Source[Any], found))


def _needs_lanes(work: Work, packing_buffer_size: int | None) -> bool:
    """Whether a sample may become any number of samples."""
    return packing_buffer_size is not None or work.is_generator or work.encoder.is_overridden("batch_group_criterion")


def _encoded(
    stream: Stream[Any], work: Work, in_lanes: bool, batch_size: int | None, packing: int | None
) -> Filled | Lanes:
    if not in_lanes:
        return Filled(stream, work)
    groups: bool | int = False
    if work.encoder.is_overridden("batch_group_criterion"):
        groups = True if batch_size is None else batch_size
    window = packing or (_GROUP_WINDOW if groups else 1)
    return Lanes(Encoded(stream, work), window, packing is not None, groups)


def _validation(
    node: Node, opening: Opening, work: Work, config: WorkerConfig,
    batch_size: int | None, drop_last: bool, packing: int | None, limit: int | None,
) -> EnergonDataset:  # fmt: skip
    if _needs_lanes(work, packing):
        raise ConfigError(
            "validation takes functions that give one sample for one",
            hint="Pack or group beforehand, or validate with get_train_dataset and a virtual_epoch_length",
        )
    found, sources = _open(node, opening, work.encoder, "val", 1, config.seed_offset)
    source = cast(Source[Any], found)
    shape = (config, batch_size, drop_last, len(source), limit or 0)
    return EnergonDataset(Filled(Sequential(source), work), work.encoder, *shape, starts_anew=True, sources=sources)
