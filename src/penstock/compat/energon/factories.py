"""Individual datasets of a path, for `build_train_datasets` and similar hooks, and for manual composition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, cast

from penstock.abc import Source
from penstock.compat.energon.build import EnergonDataset, Shape, order_of, train, validation
from penstock.compat.energon.cookers import Cooker, SampleDecoder
from penstock.compat.energon.encoded import Encoded, Samples
from penstock.compat.energon.encoder import DefaultTaskEncoder
from penstock.compat.energon.epathlib import EPath
from penstock.compat.energon.opening import Opening, open_node, opened_by, text_of, typed_below
from penstock.compat.energon.samples import (
    TYPES,
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)
from penstock.compat.energon.source_info import as_there
from penstock.compat.energon.stores import JsonlFileStore, WebdatasetFileStore
from penstock.compat.energon.walks import SavableDataset
from penstock.compat.energon.work import AnyEncoder, Work
from penstock.compat.energon.worker import WorkerConfig
from penstock.compat.unused import refuse_overrides, say_unused
from penstock.cook import Crude, CrudeSample, FileStore
from penstock.errors import ConfigError
from penstock.formats.samples.webdataset.dataset_yaml import made_by_hand
from penstock.order import Sequential
from penstock.recipe.leaf import JSONL, open_leaf
from penstock.recipe.tree import Joined, Leaf, Mixed, Node
from penstock.types import OpenOptions


class DatasetBlendMode(Enum):
    """Meaning of the numbers of several datasets."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


_KINDS = {"blend": DatasetBlendMode.DATASET_WEIGHT, "blend_epochized": DatasetBlendMode.SAMPLE_REPETITIONS}


@dataclass(kw_only=True)
class LoadedDataset:
    """A dataset with its weight or repetitions.

    Attributes:
        dataset: the dataset.
        weight: its share in a blend.
        repetitions: its repetitions per epoch in a `blend_epochized`.
        aux: its auxiliary stores, which can't be changed here.
    """

    dataset: Any
    weight: float | None = None
    repetitions: float | None = None
    aux: dict[str, FileStore] | None = None


@dataclass(kw_only=True)
class LoadedDatasetList:
    """Datasets of a path, and the meaning of their numbers."""

    datasets: list[LoadedDataset]
    blend_mode: DatasetBlendMode = DatasetBlendMode.NONE


def _as_it_is(sample: Any, **stores: Any) -> Any:
    del stores
    return sample


class _AsTheyAre(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Cooks nothing."""

    def __init__(self, decoder: SampleDecoder | None) -> None:
        super().__init__()
        self.decoder = decoder

    cookers: Sequence[Cooker] = (Cooker(_as_it_is),)


class BaseCoreDatasetFactory:
    """Base class for a dataset of a path.

    Attributes:
        paths: paths of its data; for a join those of all members.
        split_part: its split.
        subflavors: subflavors of its samples; may be changed before it is used.
        training: whether it is shuffled.
        worker_config: rank, world size and workers.

    Examples:
        >>> from penstock.compat.energon import BaseCoreDatasetFactory, WorkerConfig, load_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> loader = load_dataset("metadataset.yaml")
        >>> factory = loader.get_dataset(training=False, split_part="val", worker_config=config)
        >>> isinstance(factory, BaseCoreDatasetFactory), factory.split_part, len(factory)
        (True, 'train', 6)
    """

    __sample_type__: Any = None
    node: Leaf | Joined
    opening: Opening
    worker_config: WorkerConfig
    training: bool
    subflavors: dict[str, Any]

    @property
    def paths(self) -> list[EPath]:
        """Paths of its data."""
        node = self.node
        return [EPath(node.path)] if isinstance(node, Leaf) else [EPath(one.path) for one in node.members.values()]

    @property
    def path(self) -> EPath:
        """Path of its data; for a join that of its first member."""
        return self.paths[0]

    @property
    def split_part(self) -> str:
        """Its split."""
        return self.node.split if isinstance(self.node, Leaf) else self.opening.split

    @cached_property
    def source(self) -> Source[Any]:
        """Its samples in order, crude or typed."""
        found, _ = open_node(self.own_node, self.opening, self.encoder, "val", 1, self.worker_config.seed_offset)
        return cast(Source[Any], found)

    @property
    def own_node(self) -> Leaf | Joined:
        """Its place in a metadataset, with its subflavors."""
        return replace(self.node, subflavors=dict(self.subflavors))

    @property
    def encoder(self) -> AnyEncoder:
        """Task encoder that leaves samples unchanged."""
        return _AsTheyAre(SampleDecoder())

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[Any]:
        """Return a pass over its samples, reshuffled each time in training."""
        say_unused(
            "build", "each lane has its own samples", {"worker_rotation_offset": worker_rotation_offset or None}, {}
        )
        source, config = self.source, self.worker_config
        multiplier = self.opening.multiplier
        stream = order_of(source, self.node, multiplier, config) if self.training else Sequential(source)
        work = Work(self.encoder, config, encodes=False)
        return Samples(Encoded(stream, work), len(source), len(source), config)

    def as_file_store(self) -> WebdatasetFileStore | JsonlFileStore:
        """Return its files by name, as bytes."""
        node = self.node
        if not isinstance(node, Leaf):
            raise ConfigError("a join can't return files by name", path=node.path)
        files = JsonlFileStore if node.path.endswith(JSONL) else WebdatasetFileStore
        return files(node.path, follow_links=self.opening.follow_links)

    def __len__(self) -> int:
        return len(self.source)

    # --- what task encoders begin with ---------------------------------------------------------------------------

    def train(
        self,
        encoder: AnyEncoder,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        *,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: Any = DatasetBlendMode.NONE,
        repeat: bool = True,
    ) -> EnergonDataset:
        """Combine all datasets of a path to one for training."""
        asked = {"shuffle_buffer_size": shuffle_buffer_size}
        say_unused("build_train_datasets", "all samples of a dataset are reshuffled in each epoch", asked, {})
        shape = Shape(worker_config, batch_size, batch_drop_last, packing_buffer_size, virtual_epoch_length)
        return train(_together(datasets, blend_mode), self.opening, encoder, shape, repeat, None)

    def validation(
        self,
        encoder: AnyEncoder,
        datasets: Sequence[LoadedDataset],
        worker_config: WorkerConfig,
        batch_size: int | None,
        *,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        limit: int | None = None,
    ) -> EnergonDataset:
        """Concatenate all datasets of a path for validation."""
        shape = Shape(worker_config, batch_size, batch_drop_last, packing_buffer_size, limit or 0)
        return validation(_together(datasets, DatasetBlendMode.SAMPLE_REPETITIONS), self.opening, encoder, shape)


def _together(datasets: Sequence[LoadedDataset], mode: Any) -> Node:
    """Return the datasets combined into one node."""
    for one in datasets:
        factory = one.dataset
        if not isinstance(factory, BaseCoreDatasetFactory) or isinstance(getattr(factory, "given", None), dict):
            hint = "Combine custom datasets with wrappers"
            raise ConfigError("a dataset that isn't part of the path", found=type(factory).__name__, hint=hint)
        if one.aux is not None and one.aux is not factory.source.origin.aux:  # pyright: ignore
            raise ConfigError("auxiliary stores are set in the metadataset", hint="Don't change aux")
    if len(datasets) == 1:
        return datasets[0].dataset.own_node
    number = "weight" if mode.value == DatasetBlendMode.DATASET_WEIGHT.value else "repetitions"
    numbers = [1 if getattr(one, number) is None else getattr(one, number) for one in datasets]
    children = [(str(n), numbers[n], one.dataset.own_node) for n, one in enumerate(datasets)]
    return Mixed("blend" if number == "weight" else "blend_epochized", tuple(children), datasets[0].dataset.node.path)


_NEVER_CALLED = (
    "load_sample", "sample_filter", "config", "shard_workers", "slice_workers", "_load_sample", "_load_sample_raw",
)  # fmt: skip
"""Methods of the original's datasets by which it reads samples."""


def _require_usual(kind: type[Any], base: type[Any], unused: Mapping[str, Any]) -> None:
    """Refuse methods and options of a dataset that would be passed over."""
    refuse_overrides(kind, base, _NEVER_CALLED, "Wrap the result of build() in a MapDataset or FilterDataset")
    unknown = sorted(set(unused) - {"parallel_shard_iters", "max_samples_per_sequence"})
    if unknown:
        hint = "Set subset in a metadataset" if "subset" in unknown else None
        raise ConfigError("unknown dataset option", found=", ".join(unknown), hint=hint)
    say_unused(kind.__name__, "each sample is addressed individually", unused, {})


class BaseWebdatasetFactory(BaseCoreDatasetFactory):
    """Prepared WebDataset; see `StandardWebdatasetFactory`.

    Examples:
        >>> from penstock.compat.energon import BaseWebdatasetFactory, WorkerConfig, load_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = load_dataset("pictures").get_dataset(training=False, worker_config=config)
        >>> isinstance(dataset, BaseWebdatasetFactory), dataset.path.name
        (True, 'pictures')
    """


class DefaultGenericWebdatasetFactory(BaseWebdatasetFactory):
    """Prepared WebDataset whose samples are defined by these arguments instead of its `dataset.yaml`.

    Args:
        path: path of the dataset.
        split_part: its split.
        training: whether it is shuffled.
        worker_config: rank, world size and workers.
        subflavors: subflavors of its samples.
        field_map: field → its part, such as `json[caption]`.
        sample_loader: function from decoded parts to fields, instead of a field map.
        part_filter: parts to read, or a function that selects them.
        decoder: how to decode parts; None returns bytes.
        split_config: file in `.nv-meta` instead of `split.yaml`.
        shuffle_over_epochs: number of copies shuffled together.
        sample_type: class of its samples, if the factory class doesn't define it.
        unused: `parallel_shard_iters` and `max_samples_per_sequence` are ignored, with a log message.

    Examples:
        >>> from penstock.compat.energon import DefaultGenericWebdatasetFactory, TextSample, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> fields = {"sample_type": TextSample, "field_map": {"text": "txt"}}
        >>> dataset = DefaultGenericWebdatasetFactory("pictures", **fields, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> type(sample).__name__, sample.text
        ('TextSample', 'picture 0')
    """

    given: dict[str, Any]

    def __init__(
        self,
        path: Any,
        *,
        split_part: str = "train",
        training: bool = False,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        field_map: Mapping[str, str] | None = None,
        sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        part_filter: Sequence[str] | Callable[[str], bool] | None = None,
        decoder: SampleDecoder | None = SampleDecoder(),  # noqa: B008  it is frozen
        split_config: str | None = None,
        shuffle_over_epochs: int | None = 1,
        sample_type: Any = None,
        **unused: Any,
    ) -> None:
        _require_usual(type(self), DefaultGenericWebdatasetFactory, unused)
        kind = sample_type or self.__sample_type__
        if kind is None:
            raise ConfigError(f"{type(self).__name__} has no sample type", expected="sample_type=")
        self.__sample_type__ = kind
        self.node = Leaf(text_of(path), split_part, split_config=split_config)
        self.opening = Opening(split_part, split_config=split_config, multiplier=shuffle_over_epochs)
        self.worker_config, self.training = worker_config, training
        self.subflavors = dict(subflavors or {})
        self._decoder = decoder
        self.given = {"field_map": field_map, "sample_loader": sample_loader, "part_filter": part_filter}

    @property
    def encoder(self) -> AnyEncoder:
        """Task encoder that leaves samples unchanged."""
        return _AsTheyAre(self._decoder)

    @cached_property
    def source(self) -> Source[Any]:
        """Its samples, in order."""
        how = None if self._decoder is None else self._decoder.options
        crude = self.__sample_type__ is CrudeSample
        kind = None if crude else self.__sample_type__
        options: Any = {"split_config": self.opening.split_config, "options": OpenOptions(raw=True)}
        raw: Any = open_leaf(self.node.path, self.split_part, **options)
        made = made_by_hand(raw, kind, how, **self.given)
        name = None if kind is None else kind.__name__
        given: dict[str, Any] = {"kind": name, "sample_class": kind, "described": as_there}
        return Crude(made, subflavors=self.subflavors, decode=how, decode_parts=False, **given)


class DefaultDecoderWebdatasetFactory(DefaultGenericWebdatasetFactory):
    """Prepared WebDataset; see `DefaultGenericWebdatasetFactory`.

    Examples:
        >>> from penstock.compat.energon import DefaultDecoderWebdatasetFactory, Sample, SampleDecoder, WorkerConfig
        >>> from penstock.compat.energon import edataclass, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> @edataclass
        ... class Picture(Sample):
        ...     picture: object
        >>> decoder = SampleDecoder(image_decode="rgb8")
        >>> options = {"sample_type": Picture, "field_map": {"picture": "png"}, "decoder": decoder}
        >>> dataset = DefaultDecoderWebdatasetFactory("pictures", **options, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.picture.shape
        (6, 8, 3)
    """


class StandardWebdatasetFactory(DefaultDecoderWebdatasetFactory):
    """Prepared WebDataset with typed samples; see `DefaultGenericWebdatasetFactory`.

    Requires `sample_type`.

    Examples:
        >>> from penstock.compat.energon import StandardWebdatasetFactory, TextSample, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> class Captions(StandardWebdatasetFactory):
        ...     __sample_type__ = TextSample
        >>> dataset = Captions("pictures", field_map={"text": "txt"}, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.text
        'picture 0'
    """


class CrudeWebdataset(DefaultDecoderWebdatasetFactory):
    """Prepared WebDataset with its parts as samples, for cookers.

    Examples:
        >>> from penstock.compat.energon import CrudeWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = CrudeWebdataset("pictures", worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample["__key__"], sample["txt"]
        ('000', 'picture 0')
    """

    __sample_type__ = CrudeSample


class JoinedWebdatasetFactory(BaseWebdatasetFactory):
    """Several datasets joined by key, as defined by a metadataset.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.energon import JoinedWebdatasetFactory, WorkerConfig, get_loader, load_dataset
        >>> written = Path("join.yaml").write_text('''
        ... __module__: megatron.energon
        ... __class__: MetadatasetV2
        ... splits:
        ...   train:
        ...     join: [{path: pictures}, {path: films, nonmatch: skip}]
        ...     joiner: {__module__: megatron.energon, __class__: CaptioningSample}
        ... ''')
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = load_dataset("join.yaml").get_dataset(training=False, worker_config=config)
        >>> type(dataset).__name__, [sample.caption for sample in get_loader(dataset.build())]
        ('JoinedWebdatasetFactory', ['picture 0', 'picture 1'])
    """


class CrudeJsonlDatasetFactory(BaseCoreDatasetFactory):
    """Crude dataset in a JSONL file.

    Args:
        path: path of the file.
        training: whether it is shuffled.
        worker_config: rank, world size and workers.
        subflavors: subflavors of its samples.
        shuffle_over_epochs: number of copies shuffled together.
        unused: `parallel_shard_iters` and `max_samples_per_sequence` are ignored, with a log message.

    Examples:
        >>> from penstock.compat.energon import CrudeJsonlDatasetFactory, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = CrudeJsonlDatasetFactory("docs.jsonl", worker_config=config, subflavors={"kind": "text"})
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample["json"]["id"], sample["__subflavors__"]
        ('a1', {'kind': 'text'})
    """

    __sample_type__ = CrudeSample

    def __init__(
        self,
        path: Any,
        *,
        training: bool = False,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs: int | None = 1,
        **unused: Any,
    ) -> None:
        _require_usual(type(self), CrudeJsonlDatasetFactory, unused)
        self.node = Leaf(text_of(path), "train")
        self.opening = Opening("train", multiplier=shuffle_over_epochs)
        self.worker_config, self.training = worker_config, training
        self.subflavors = dict(subflavors or {})


class DefaultCrudeJsonlDatasetFactory(CrudeJsonlDatasetFactory):
    """Crude dataset in a JSONL file; see `CrudeJsonlDatasetFactory`.

    Examples:
        >>> from penstock.compat.energon import DefaultCrudeJsonlDatasetFactory, WorkerConfig, load_dataset
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = load_dataset("docs.jsonl").get_dataset(training=False, worker_config=config)
        >>> type(dataset).__name__, len(dataset)
        ('DefaultCrudeJsonlDatasetFactory', 6)
        >>> dataset.as_file_store().get("0.json")[:12]
        b'{"id": "a1",'
    """


class CaptioningWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `CaptioningSample`.

    Examples:
        >>> from penstock.compat.energon import CaptioningWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> fields = {"image": "png", "caption": "txt"}
        >>> dataset = CaptioningWebdataset("pictures", field_map=fields, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.caption, sample.image.shape
        ('picture 0', torch.Size([3, 6, 8]))
    """

    __sample_type__ = CaptioningSample


class ImageClassificationWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `ImageClassificationSample`.

    Examples:
        >>> from penstock.compat.energon import ImageClassificationWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> def fields(parts):
        ...     return {"image": parts["png"], "label": int(parts["txt"].split()[1])}
        >>> dataset = ImageClassificationWebdataset("pictures", sample_loader=fields, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.label
        0
    """

    __sample_type__ = ImageClassificationSample


class ImageWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `ImageSample`.

    Examples:
        >>> from penstock.compat.energon import ImageWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = ImageWebdataset("pictures", field_map={"image": "png"}, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.image.shape
        torch.Size([3, 6, 8])
    """

    __sample_type__ = ImageSample


class InterleavedWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `InterleavedSample`.

    Examples:
        >>> from penstock.compat.energon import InterleavedWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> def fields(parts):
        ...     return {"sequence": [parts["txt"], parts["png"]]}
        >>> dataset = InterleavedWebdataset("pictures", sample_loader=fields, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.sequence[0], sample.sequence[1].shape
        ('picture 0', torch.Size([3, 6, 8]))
    """

    __sample_type__ = InterleavedSample


class MultiChoiceVQAWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `MultiChoiceVQASample`.

    Examples:
        >>> from penstock.compat.energon import MultiChoiceVQAWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> def fields(parts):
        ...     return {"image": parts["png"], "context": "Which one?", "choices": ["none", parts["txt"]]}
        >>> dataset = MultiChoiceVQAWebdataset("pictures", sample_loader=fields, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.context, sample.choices
        ('Which one?', ['none', 'picture 0'])
    """

    __sample_type__ = MultiChoiceVQASample


class OCRWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `OCRSample`.

    Examples:
        >>> from penstock.compat.energon import OCRWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = OCRWebdataset("pictures", field_map={"image": "png", "text": "txt"}, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.text
        'picture 0'
    """

    __sample_type__ = OCRSample


class SimilarityInterleavedWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `SimilarityInterleavedSample`.

    Examples:
        >>> from penstock.compat.energon import SimilarityInterleavedWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> def fields(parts):
        ...     return {"images": [parts["png"]], "texts": [parts["txt"]], "matched_text_indices": [0]}
        >>> dataset = SimilarityInterleavedWebdataset("pictures", sample_loader=fields, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.texts
        ['picture 0']
    """

    __sample_type__ = SimilarityInterleavedSample


class TextWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `TextSample`.

    Examples:
        >>> from penstock.compat.energon import TextWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = TextWebdataset("pictures", field_map={"text": "txt"}, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.text
        'picture 0'
    """

    __sample_type__ = TextSample


class VQAOCRWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `VQAOCRSample`.

    Examples:
        >>> from penstock.compat.energon import VQAOCRWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> def fields(parts):
        ...     return {"image": parts["png"], "context": "What does it say?", "text": parts["txt"]}
        >>> dataset = VQAOCRWebdataset("pictures", sample_loader=fields, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.context, sample.text
        ('What does it say?', 'picture 0')
    """

    __sample_type__ = VQAOCRSample


class VQAWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `VQASample`.

    Examples:
        >>> from penstock.compat.energon import VQAWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = VQAWebdataset("pictures", field_map={"image": "png", "context": "txt"}, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.context
        'picture 0'
    """

    __sample_type__ = VQASample


class VidQAWebdataset(DefaultDecoderWebdatasetFactory):
    """A WebDataset of `VidQASample`.

    Examples:
        >>> from penstock.compat.energon import VidQAWebdataset, WorkerConfig, get_loader
        >>> config = WorkerConfig(rank=0, world_size=1, num_workers=0)
        >>> dataset = VidQAWebdataset("films", field_map={"video": "mp4", "context": "txt"}, worker_config=config)
        >>> sample = next(iter(get_loader(dataset.build())))
        >>> sample.context, sample.video.get_metadata().video_num_frames
        ('question 0', 6)
    """

    __sample_type__ = VidQASample


def loaded_datasets(
    node: Node,
    opening: Opening,
    config: WorkerConfig,
    *,
    training: bool,
    subflavors: Mapping[str, Any] | None = None,
) -> LoadedDatasetList:
    """Return the datasets and joins below a node, with their weights or repetitions."""
    mode = DatasetBlendMode.NONE if not isinstance(node, Mixed) else _KINDS[node.kind]
    made: list[LoadedDataset] = []
    for unit, number in _units(node, 1):
        factory = factory_of(unit, opening, config, training=training, subflavors=subflavors)
        weighted = mode is DatasetBlendMode.DATASET_WEIGHT
        one = LoadedDataset(dataset=factory, weight=number if weighted else None)
        one.repetitions = number if mode is DatasetBlendMode.SAMPLE_REPETITIONS else None
        made.append(one)
    return LoadedDatasetList(datasets=made, blend_mode=mode)


def factory_of(
    unit: Leaf | Joined, opening: Opening, config: WorkerConfig, *, training: bool, subflavors: Any = None
) -> BaseCoreDatasetFactory:
    """One dataset or join."""
    jsonl = isinstance(unit, Leaf) and unit.path.endswith(JSONL)
    found: type[BaseCoreDatasetFactory] = DefaultCrudeJsonlDatasetFactory if jsonl else JoinedWebdatasetFactory
    made: Any = object.__new__(found)
    made.node, made.opening, made.worker_config, made.training = unit, opening, config, training
    made.subflavors = {**unit.subflavors, **(subflavors or {})}
    typed = typed_below(made.source)
    kind = made.source.origin.kind
    if typed is not None:
        made.subflavors = {**typed.subflavors, **made.subflavors}
    if isinstance(unit, Leaf) and not jsonl:
        made.__class__ = CrudeWebdataset if kind is None else StandardWebdatasetFactory
        made.given, made._decoder = None, SampleDecoder()
        made.__dict__["source"] = made.source
    made.__sample_type__ = CrudeSample if kind is None else made.source.origin.sample_class or TYPES.get(kind)
    return made


def _units(node: Node, number: float) -> list[tuple[Leaf | Joined, float]]:
    """Datasets and joins, with their share of the whole, or how often they come."""
    if not isinstance(node, Mixed):
        return [(node, number)]
    whole = sum(one for _, one, _ in node.children) if node.kind == "blend" else 1
    return [unit for _, own, child in node.children for unit in _units(child, number * own / whole)]


def get_dataset_from_config(
    path: Any,
    *,
    split_part: str = "train",
    training: bool = True,
    subflavors: Mapping[str, Any] | None = None,
    worker_config: WorkerConfig,
    shuffle_over_epochs: int | None = 1,
    subset: Any = None,
    **options: Any,
) -> BaseCoreDatasetFactory:
    """Return the dataset defined by a `dataset.yaml`; see `get_train_dataset` for the options."""
    if subset is not None:
        raise ConfigError("a subset must be set in a metadataset", found=repr(subset))
    given, opening = opened_by(path, options, split_part)
    node = replace(opening, multiplier=shuffle_over_epochs).node(given)
    if isinstance(node, Mixed):
        raise ConfigError("a metadataset has several datasets", path=given, hint="Use load_dataset(path).get_datasets")
    opening = replace(opening, multiplier=shuffle_over_epochs)
    return factory_of(node, opening, worker_config, training=training, subflavors=subflavors)
