"""Typed samples over the raw ones of a WebDataset: parts are decoded, and mapped to the fields of a type."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._digest import digest
from penstock.codec.av import AVData, AVDecoder
from penstock.codec.fieldmap import FieldMap, apply
from penstock.codec.parts import DecodeOptions, decode_image, decode_parts
from penstock.codec.upright import upright_metadata
from penstock.errors import ConfigError, Corrupt, NotFound, PenstockError
from penstock.formats.samples.webdataset.sample_types import TYPES, SampleType
from penstock.formats.samples.webdataset.source import WebdatasetSource
from penstock.node.over import ChangedView
from penstock.types import Extent, Field, ImageMetadata, MediaMetadata, Place, Sample, Schema

_AVIF = (b"ftypavif", b"ftypavis")


def require_images(sample_type: SampleType, fields: Mapping[str, Any]) -> None:
    """Raise `Corrupt` if a field that its type declares an image isn't an array of pixels."""
    for name in image_fields(sample_type):
        value = fields.get(name)
        if value is not None and not isinstance(value, np.ndarray):
            raise _not_one(name, value, "an image")


def image_fields(sample_type: SampleType) -> tuple[str, ...]:
    return ("image",) if "image" in sample_type.fields else ()


def wrong_fields(sample_type: SampleType, fields: Mapping[str, Any]) -> Iterator[Corrupt]:
    """Yield the errors of fields of a sample, decoded with default options; none for types of other programs."""
    if TYPES.get(sample_type.name) is None:
        return
    for name in sample_type.fields:
        kind = _KINDS.get(name)
        value = fields.get(name)
        if kind is not None and value is not None and not kind[1](value):
            yield _not_one(name, value, kind[0])


def _not_one(name: str, value: Any, expected: str) -> Corrupt:
    return Corrupt(
        f"the field {name!r} is not {expected}",
        found=f"{type(value).__name__} {repr(value)[:40]}",
        expected=expected,
        hint="Set the right part in the field_map of dataset.yaml, or fix the part",
    )


def _is_image(value: Any) -> bool:
    if isinstance(value, bytes) and value[4:12] in _AVIF:
        try:
            decode_image(value, DecodeOptions("rgb8", upright=True))
        except PenstockError:
            return False
        return True
    return isinstance(value, np.ndarray) or type(value).__module__.partition(".")[0] == "PIL"


def _is_text(value: Any) -> bool:
    """Return true if a value is text, or a number in place of text, as in the part `cls`."""
    return isinstance(value, str | int | float)


def _is_av(value: Any) -> bool:
    return isinstance(value, AVDecoder | AVData)


_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "image": ("an image", _is_image),
    **dict.fromkeys(("caption", "context", "text", "label_name"), ("text", _is_text)),
    **dict.fromkeys(("video", "audio"), ("an audio or video file", _is_av)),
}


SampleLoader = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Function from decoded parts with `__key__` to the fields of the typed sample."""

Remake = tuple[Callable[..., Any], tuple[Any, ...]]

_STEP = 1024
_KEPT = ("__restore_key__", "__subflavors__", "__sources__")


@dataclass(frozen=True, slots=True)
class SaidSubset:
    """Part of a split selected in `dataset.yaml`.

    Attributes:
        start: first sample, including excluded ones in the count.
        stop: end of the range; None for the end of the split.
        ratio: the selected part of that range.
    """

    start: int
    stop: int | None
    ratio: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Typing:
    """Conversion of raw samples to typed ones.

    Attributes:
        name: name of the file that defines it.
        sample_type: None for crude data, which stays unchanged.
        field_map: access of each field; alternative to `loader`.
        loader: code of the dataset.
        parts: names of the selected parts, or a predicate; None for all.
        decode: how parts are decoded; None leaves them as bytes.
        subflavors: attached to every sample.
        columns: keep only these fields.
        config: name of that file in `.nv-meta` if it isn't `dataset.yaml`.
        asked: `decode=` of `penstock.open`.
        subset: selected part of the split; applied by the code that combines datasets.
        unheeded: settings in the file that are ignored here.
    """

    name: str
    sample_type: SampleType | None = None
    field_map: FieldMap | None = None
    loader: SampleLoader | None = None
    parts: frozenset[str] | Callable[[str], bool] | None = None
    decode: DecodeOptions | None = None
    subflavors: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    columns: tuple[str, ...] | None = None
    config: str | None = None
    asked: str | None = None
    subset: SaidSubset | None = None
    unheeded: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    def identity(self) -> list[Any]:
        """Return all properties that determine a sample, as plain JSON; code is identified by its function name."""
        return [
            None if self.sample_type is None else [self.sample_type.name, *self.sample_type.fields],
            None if self.field_map is None else {name: [*map(list, one)] for name, one in self.field_map.items()},
            getattr(self.loader, "__name__", None),
            sorted(self.parts) if isinstance(self.parts, frozenset) else getattr(self.parts, "__name__", None),
            None if self.decode is None else self.decode.image,
            dict(self.subflavors),
            self.columns,
        ]


class TypedSample(dict[str, Any]):
    """Fields of a typed sample; a missing name raises `NotFound`, which is a `KeyError`, with the existing fields."""

    __slots__ = ()

    def __missing__(self, name: object) -> Any:
        fields = [field for field in self if not field.startswith("__")]
        hint = "dataset.yaml maps stored parts to these fields"
        raise NotFound(f"no field {name!r} in this sample", expected=", ".join(fields), hint=hint)


class TypedSource(ChangedView):
    """Typed samples of one split; see `penstock.abc.Source`. Returned by `penstock.open`.

    A sample has `__key__`, `__restore_key__`, `__subflavors__`, `__sources__`, and the fields of its type; a crude
    sample has its decoded parts. Lookups of files by name return the stored bytes.

    Args:
        raw: the raw samples.
        typing: the conversion to typed samples.
        remake: function and arguments that make this source again in another process.
    """

    kind = "open"
    title = "webdataset"
    source: WebdatasetSource
    _get_with_shard = None  # files are read by the raw source; samples name their shards

    def __init__(
        self, raw: WebdatasetSource, typing: Typing, remake: tuple[Callable[..., Any], tuple[Any, ...]]
    ) -> None:
        super().__init__(raw)
        self._typing = typing
        self._remake = remake

    def __reduce__(self) -> tuple[object, ...]:
        return self._remake

    def proof(self) -> None:
        self.source.proof()

    @property
    def subset(self) -> SaidSubset | None:
        """Selected part of the split; this source has all samples of the split regardless."""
        return self._typing.subset

    @property
    def split(self) -> str | None:
        return self.source.split

    @property
    def raw(self) -> WebdatasetSource:
        return self.source

    @property
    def sample_type(self) -> SampleType | None:
        return self._typing.sample_type

    @property
    def is_mapped(self) -> bool:
        """True if its fields are defined by a field map, not by code."""
        return self._typing.field_map is not None

    @property
    def unheeded(self) -> Mapping[str, Any]:
        """Settings of its `dataset.yaml` for Energon's readers that are ignored here."""
        return self._typing.unheeded

    @property
    def subflavors(self) -> Mapping[str, Any]:
        return self._typing.subflavors

    @property
    def schema(self) -> Schema:
        """Key, and the fields of the type; open for crude data."""
        chosen = self._typing.columns
        one = self._typing.sample_type
        if one is None:
            return Schema(tuple(Field(name, "part") for name in chosen or ("__key__",)), open=True)
        names = [name for name in ("__key__", *one.fields) if chosen is None or name in chosen]
        return Schema(tuple(Field(name, "text" if name == "__key__" else "part") for name in names), open=True)

    def identity(self) -> tuple[Any, ...]:
        return (self.source.fingerprint, self._typing.identity())

    @property
    def undecoded(self) -> str:
        """Fingerprint that doesn't depend on how parts are decoded."""
        return digest(self.source.fingerprint, dataclasses.replace(self._typing, decode=None).identity())

    @property
    def kept_key(self) -> str:
        return digest(self.fingerprint, self.source.kept_key)

    def __iter__(self) -> Iterator[Sample]:
        for start in range(0, len(self), _STEP):
            yield from self.get_samples(np.arange(start, min(len(self), start + _STEP)))

    def place_of(self, index: int, /) -> Place:
        return self.source.place_of(index)

    def parts_of(self, index: int, most: int, /) -> tuple[str, list[tuple[str, Extent]], int, bool]:
        return self.source.parts_of(index, most)

    def _get_media_metadata(self, name: str, /) -> MediaMetadata:
        """Return the metadata of a part in the media index, with the size of decoded pixels; raise `NotFound`."""
        found = self.source.get_media_metadata(name)
        decode = self._typing.decode
        if isinstance(found, ImageMetadata) and decode is not None and decode.upright:
            return upright_metadata(found, self.get(name))
        return found

    def children(self) -> dict[str, Any]:
        """Return an empty mapping: data on disk has no children."""
        return {}

    def recipe(self) -> dict[str, Any]:
        how = self._typing
        given: dict[str, Any] = {} if how.columns is None else {"columns": list(how.columns)}
        given |= {"trust": True} if how.decode is not None and how.decode.trust else {}
        given |= {} if how.asked is None else {"decode": how.asked}
        given |= {} if how.config is None else {"dataset_config": how.config}
        return {**self.source.recipe(), **given}

    def details(self) -> dict[str, Any]:
        return self.source.details()

    def shown(self) -> dict[str, Any]:
        one = self._typing.sample_type
        return {"path": self.path, "split": self.split, "type": "crude" if one is None else one.name}

    # --- inside --------------------------------------------------------------------------------------------------

    def change(self, sample: Sample, number: int) -> Sample:
        del number
        try:
            made = self._made(sample)
        except PenstockError as error:
            if error.path is None:
                error.path = self.path
                error.what = f"sample {sample['__key__']!r}: {error.what}"
            raise
        columns = self._typing.columns
        return made if columns is None else {name: made[name] for name in columns if name in made}

    def _made(self, raw: Sample) -> Sample:
        how = self._typing
        parts = self._decoded(raw)
        head = {
            "__key__": raw["__key__"],
            "__restore_key__": raw["__restore_key__"],
            "__subflavors__": dict(how.subflavors),
            "__sources__": self._sources(raw, parts),
        }
        if how.sample_type is None:
            return {**head, **parts}
        if how.loader is not None:
            made = self._loaded(how.loader, {**head, **parts})
        else:
            made = apply(how.field_map or {}, parts)
            if how.decode is not None and how.decode.upright:
                require_images(how.sample_type, made)
        missing = [name for name in how.sample_type.required if name not in made]
        if missing:
            raise Corrupt(f"no value for {', '.join(missing)} of {how.sample_type.name}", hint=f"Fix {how.name}")
        return TypedSample({**head, **how.sample_type.defaults, **made})

    def _decoded(self, raw: Sample) -> dict[str, Any]:
        how = self._typing
        names = [name for name in raw if not (name.startswith("__") and name.endswith("__"))]
        if how.parts is not None:
            reads = how.parts.__contains__ if isinstance(how.parts, frozenset) else how.parts
            names = [name for name in names if reads(name)]
        parts = {name: raw[name] for name in names}
        return parts if how.decode is None else decode_parts(parts, how.decode)

    def _sources(self, raw: Sample, parts: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the sources of a sample, limited to the files that were read."""
        skip = len(raw["__key__"]) + 1
        return tuple(
            dataclasses.replace(one, file_names=tuple(name for name in one.file_names if name[skip:] in parts))
            for one in raw["__sources__"]
        )

    def _loaded(self, loader: SampleLoader, sample: Sample) -> dict[str, Any]:
        made: object = loader(sample)
        if not isinstance(made, dict):
            raise ConfigError("a sample loader must return a dict", found=type(made).__name__)
        fields = self._typing.sample_type.fields if self._typing.sample_type else ()
        unknown = [str(name) for name in made if name not in ("__key__", *_KEPT, *fields)]
        if unknown:
            hint = f"Fix {self._typing.name}"
            raise ConfigError("a sample loader returned unknown fields", found=", ".join(unknown), hint=hint)
        return {str(name): value for name, value in made.items() if name not in _KEPT}
