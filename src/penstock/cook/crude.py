"""Raw samples with references to their datasets, for cooking above a blend of many datasets."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from penstock.abc import Source, SupportsFiles
from penstock.codec.parts import DecodeOptions, Refused, decode_parts
from penstock.cook.stores import Described, FileStore, stores_of
from penstock.errors import PenstockError, UnsafeData
from penstock.mix.auxiliary import aux_of
from penstock.node.over import ChangedView
from penstock.types import IntArray, Schema


@dataclass(frozen=True, eq=False)
class Origin:
    """Dataset of a raw sample.

    Attributes:
        aux: name → store.
        primary: store of the dataset itself, if it has files by name.
        kind: type name of samples that are already typed; None for crude ones.
        sample_class: class of that type, if it is the user's own.
    """

    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    aux: Mapping[str, FileStore] = field(default_factory=dict[str, FileStore])
    primary: FileStore | None = None
    kind: str | None = None
    sample_class: Any = None


class CrudeSample(dict[str, Any]):
    """Crude sample: a dict of its parts, with a reference to its dataset.

    Attributes:
        origin: its dataset.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import Crude
        >>> sample = Crude(ps.open("pictures", raw=True), subflavors={"kind": "pictures"})[0]
        >>> type(sample).__name__, sample["txt"], sample["__subflavors__"]
        ('CrudeSample', b'picture 0', {'kind': 'pictures'})
    """

    __slots__ = ("origin",)

    origin: Origin


class _Guarded(CrudeSample):
    """Raw sample with a part that raises an error on access, directly or with all others."""

    __slots__ = ()

    def __getitem__(self, name: str, /) -> Any:
        return self._given(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # an own __iter__ makes dict() and ** request each value

    def get(self, name: str, default: Any = None, /) -> Any:
        return self._given(super().get(name, default))

    def pop(self, name: str, /, *default: Any) -> Any:
        return self._given(super().pop(name, *default))

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def _given(self, value: Any) -> Any:
        if type(value) is not Refused:
            return value
        error, sources = value.error, super().get("__sources__")
        raise UnsafeData(
            f"sample {super().get('__key__')!r}: {error.what}",
            path=str(sources[0].dataset_path) if sources else None,
            offset_bytes=error.offset_bytes,
            found=error.found,
            hint=error.hint,
        )


_NAMED = ("trust", "most_pixels", "most_bytes", "frames", "sound")


class Crude(ChangedView):
    """Source of `CrudeSample`s: the samples of `source`, decoded, each with its dataset's properties.

    Args:
        source: source of crude samples; its auxiliary stores (`WithAux`) are the dataset's.
        subflavors: subflavors of the samples, in addition to their own, which they override.
        decode: how to decode parts, files of the dataset and files of the stores, by extension; None returns bytes.
        decode_parts: whether to decode parts; False if the source has already done so.
        kind: type name of samples that are already typed.
        sample_class: class of that type, if it is the user's own; samples aren't converted to it here.
        described: function that changes each entry of the `__sources__` of samples and files.

    Examples:
        >>> import penstock as ps
        >>> from penstock.cook import Crude
        >>> crude = Crude(ps.open("pictures", raw=True), subflavors={"kind": "pictures"})
        >>> crude[1]["txt"]
        b'picture 1'
    """

    kind = "crude"

    def __init__(
        self,
        source: Source[Any],
        *,
        subflavors: Mapping[str, Any] | None = None,
        decode: DecodeOptions | None = None,
        decode_parts: bool = True,
        kind: str | None = None,
        sample_class: Any = None,
        described: Described | None = None,
    ) -> None:
        super().__init__(source)
        self._decode = decode
        self._decode_parts = decode_parts and decode is not None
        self._described = described
        primary = FileStore(source, decode, described=described) if isinstance(source, SupportsFiles) else None
        stores = stores_of(aux_of(source), decode, described)
        self.origin = Origin(dict(subflavors or {}), stores, primary, kind, sample_class)

    def __reduce__(self) -> tuple[object, ...]:
        options: dict[str, Any] = {"subflavors": self.origin.subflavors, "decode": self._decode}
        options |= {"decode_parts": self._decode_parts, "described": self._described}
        options |= {"kind": self.origin.kind, "sample_class": self.origin.sample_class}
        return (partial(Crude, **options), (self.source,))

    @property
    def schema(self) -> Schema:
        return Schema(self.source.schema.fields, open=True)

    def identity(self) -> tuple[Any, ...]:
        decoding = [self._decode.image if self._decode is not None else None, self._decode_parts]
        return ("crude", dict(self.origin.subflavors), decoding, self.source.fingerprint)

    def change_all(self, samples: list[Any], numbers: IntArray) -> list[Any]:
        if self.origin.subflavors or self._decode_parts or self._described or set(map(type, samples)) != {dict}:
            return super().change_all(samples, numbers)
        made = list(map(CrudeSample, samples))
        for one in made:
            one.origin = self.origin
        return list(map(self._guarded, made))

    def own(self) -> dict[str, Any]:
        own: dict[str, Any] = {"subflavors": dict(self.origin.subflavors), "decode": None}
        if self._decode is not None:
            usual = DecodeOptions()
            given = {name: getattr(self._decode, name) for name in _NAMED}
            own["decode"] = self._decode.image
            own |= {name: value for name, value in given.items() if value != getattr(usual, name)}
            own |= {} if self._decode_parts else {"decode_parts": False}
        if self.origin.kind is not None:
            own["sample_type"] = self.origin.kind
        return own

    def shown(self) -> dict[str, Any]:
        return {**self.origin.subflavors, "aux": ",".join(self.origin.aux) or None}

    def change(self, sample: Any, number: int) -> Any:
        raw = sample if self._described is None else _redescribed(sample, self._described)
        if not isinstance(raw, dict):
            return raw  # returned by a joiner
        made = CrudeSample(raw)
        made.origin = self.origin
        if self.origin.subflavors:
            made["__subflavors__"] = {**(raw.get("__subflavors__") or {}), **self.origin.subflavors}
        if self._decode_parts:
            self._decode_all(made)
        return self._guarded(made)

    def _guarded(self, made: CrudeSample) -> CrudeSample:
        if self._decode is None or not self._decode.refuse_late or Refused not in set(map(type, made.values())):
            return made
        guarded = _Guarded(made)
        guarded.origin = self.origin
        return guarded

    def _decode_all(self, made: CrudeSample) -> None:
        how = self._decode
        if how is None:
            return
        parts = {name: one for name, one in made.items() if type(one) is bytes and not name.startswith("__")}
        try:
            made.update(decode_parts(parts, how))
        except PenstockError as error:
            error.what = f"sample {made.get('__key__')!r}: {error.what}"
            raise


def _redescribed(raw: Any, described: Described) -> Any:
    """Return the sample with rewritten sources; a sample that a source may reuse isn't modified."""
    if isinstance(raw, dict):
        sources = cast("dict[str, Any]", raw).get("__sources__")
        return {**raw, "__sources__": tuple(map(described, sources))} if sources else raw
    sources = getattr(raw, "__sources__", None)
    if not sources:
        return raw
    made = copy.copy(raw)
    made.__sources__ = tuple(map(described, sources))
    return made
