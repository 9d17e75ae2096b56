"""`dataset.yaml`: the type of the samples of a dataset. Reads every form that Energon has written.

| form | keys |
|---|---|
| from 4.0 | `sample_type: {__module__, __class__}`, and `field_map`, or `sample_loader` with `part_filter` |
| up to 3.x | `__module__`, `__class__: <X>Webdataset`, other keys as above |
| crude | `__module__`, `__class__: CrudeWebdataset`: the parts unchanged, decoded; `part_filter` as a list |

All may have `subflavors`, and a `subset`: `absolute_range` in samples, `range` as fractions of the result.

A field map lists the origin of each field, see `penstock.codec.fieldmap`. A sample loader is Python code next to the
data. It only runs with `trust=True`, and so does a part filter that is code.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._digest import digest
from penstock.codec import energon_yaml
from penstock.codec.fieldmap import FieldMap, parse_field_map, parts_of
from penstock.codec.parts import DecodeOptions, array_options
from penstock.errors import ConfigError, FormatError, UnsafeData
from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML, Splits, meta_path, named_splits
from penstock.formats.samples.webdataset.sample_types import DATASETS, ENERGON, SampleType, find_type, type_of_class
from penstock.formats.samples.webdataset.source import WebdatasetSource
from penstock.formats.samples.webdataset.typed import SaidSubset, TypedSource, Typing
from penstock.store.base import Store
from penstock.store.put import read_document
from penstock.types import OpenOptions

CRUDE = "CrudeWebdataset"
_STANDARD = "StandardWebdatasetFactory"

_KNOWN = {
    *("__module__", "__class__", "sample_type", "field_map", "sample_loader", "part_filter", "subflavors"),
    *("decoder", "shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence", "subset"),
    *("split_part", "split_config"),
    *("subflavor", "info_config", "handler", "image_decode", "ignore_decoder_errors"),
    *("auto_decode", "video_decode", "video_decode_audio", "av_decode"),
}
_UNHEEDED = frozenset((
    *("shuffle_over_epochs", "parallel_shard_iters", "max_samples_per_sequence", "handler", "ignore_decoder_errors"),
    *("av_decode", "info_config"),
))  # fmt: skip
_OLD_PREFIXES = ("audio_", "video_")


@dataclass(frozen=True, slots=True)
class DatasetYaml:
    """Content of a `dataset.yaml`.

    Attributes:
        path: path of the file.
        type_module: module of the sample type, or None; `type_name` is its class, None for crude data.
        field_map: field → access; None without one.
        sample_loader: `"file.py:function"`; None without one.
        part_filter: names of selected parts, or `"file.py:function"`, or None for all.
        subflavors: attached to every sample.
        is_decoded: False if parts stay bytes.
        image_decode: how images are decoded, recorded in old files.
        split_config: file in `.nv-meta` to use instead of `split.yaml`.
        split_part: the split, which overrides the requested one.
        subset: part of the split, which overrides that of a metadataset.
        unheeded: settings for Energon's readers that don't select data; ignored here.
    """

    path: str
    type_module: str | None
    type_name: str | None
    field_map: FieldMap | None = None
    sample_loader: str | None = None
    part_filter: str | tuple[str, ...] | None = None
    subflavors: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_decoded: bool = True
    image_decode: str | None = None
    split_config: str | None = None
    split_part: str | None = None
    subset: SaidSubset | None = None
    unheeded: Mapping[str, Any] = field(default_factory=dict[str, Any])


def read_dataset_yaml(store: Store, root: str, name: str = DATASET_YAML) -> DatasetYaml:
    """Read a description of the samples from `.nv-meta`.

    Args:
        store: the store of the dataset.
        root: its folder.
        name: name of the file.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file isn't YAML.
        ConfigError: the file contradicts itself, or has an unknown key.
    """
    path = meta_path(root, name)
    return parse_dataset_yaml(energon_yaml.load(read_document(store, path), path), path)


def parse_dataset_yaml(value: Any, path: str) -> DatasetYaml:
    if not isinstance(value, dict):
        raise FormatError("the file is not a mapping", path=path, found=type(value).__name__)
    module, name = _type_named(value, path)
    _require_known_keys(value, path)
    loader = _text(value, "sample_loader", path)
    access = None if value.get("field_map") is None else parse_field_map(value["field_map"], path)
    parts: Any = value.get("part_filter")
    if isinstance(parts, list):
        parts = tuple(map(str, parts))
    elif parts is not None and not isinstance(parts, str):
        raise _wrong(path, "part_filter", parts, "a list of parts, or file.py:function")
    subflavors: Any = value.get("subflavors") or {}
    if not isinstance(subflavors, dict):
        raise _wrong(path, "subflavors", subflavors, "a mapping")
    if name is None and (loader is not None or access is not None):
        raise ConfigError("a crude dataset can't have a field_map or sample_loader", path=path, hint="Remove it")
    if name is not None and (loader is None) == (access is None):
        raise ConfigError("a sample type needs either a field_map or a sample_loader", path=path)
    if access is not None and parts is not None:
        raise ConfigError("part_filter can't be combined with a field_map, which selects its parts", path=path)
    is_decoded = value.get("auto_decode", True) is not False and value.get("decoder", True) is not None
    image, split_config, split_part = (
        _text(value, key, path) for key in ("image_decode", "split_config", "split_part")
    )
    unheeded = {key: value[key] for key in value if key in _UNHEEDED or key.startswith(_OLD_PREFIXES)}
    said = _subset(value.get("subset"), path)
    how = (access, loader, parts, subflavors, is_decoded, image)
    return DatasetYaml(path, module, name, *how, split_config, split_part, said, unheeded)


def splits_of(store: Store, root: str, found: DatasetYaml) -> Splits | None:
    """Return the splits of the file that replaces `split.yaml`, or None if there is no such setting.

    Raises:
        NotFound: the file doesn't exist.
        ConfigError: the file defines no splits.
    """
    return None if found.split_config is None else named_splits(store, root, found.split_config)


def typed_view(
    raw: WebdatasetSource,
    store: Store,
    path: str,
    options: OpenOptions,
    *,
    dataset_config: str = DATASET_YAML,
    sample_types: Mapping[str, SampleType] | None = None,
    found: DatasetYaml | None = None,
) -> TypedSource:
    """Return typed samples over raw ones, according to `dataset.yaml` or its parsed content, `found`.

    Args:
        raw: the raw samples, with all their parts.
        store: the store of the dataset.
        path: folder of the dataset.
        options: `trust` allows the dataset's own code to run; `columns` keeps only these fields.
        dataset_config: name of the file in `.nv-meta`.
        sample_types: `module.Class` → types allowed in addition to the known ones.
        found: content of `dataset.yaml`, if it was read already.

    Raises:
        UnsafeData: the file names code or an unknown class, and `trust` is false.
        ConfigError: the type doesn't have one of the fields.
    """
    found = read_dataset_yaml(store, path, dataset_config) if found is None else found
    sample_type, known = None, dict[str, SampleType]()
    if found.type_name is not None:
        name = f"{found.type_module}.{found.type_name}"
        sample_type = (sample_types or {}).get(name)
        known = {} if sample_type is None else {name: sample_type}  # other types aren't needed in other processes
        if sample_type is None:
            sample_type = find_type(found.type_module, found.type_name, trust=options.trust, path=found.path)
        _require_fields(found, sample_type)
    code = found.sample_loader or (found.part_filter if isinstance(found.part_filter, str) else None)
    if code is not None and not options.trust:
        raise UnsafeData(
            "the samples are made by code that is part of the dataset",
            path=found.path,
            found=code,
            hint="Pass --trust (trust=True) if you trust its author. In Python, raw=True returns the stored parts",
        )
    how = Typing(
        name=found.path,
        sample_type=sample_type,
        field_map=found.field_map,
        loader=_code(store, found, found.sample_loader, "sample_loader"),
        parts=_parts(store, found),
        decode=_decoding(found, options),
        asked=options.decode,
        subflavors=found.subflavors,
        columns=options.columns,
        config=None if dataset_config == DATASET_YAML else dataset_config,
        subset=found.subset,
        unheeded=found.unheeded,
    )
    again = functools.partial(typed_view, dataset_config=dataset_config, sample_types=known)
    return TypedSource(raw, how, (again, (raw, store, path, options)))


def made_by_hand(
    raw: WebdatasetSource,
    cls: Any,
    decode: DecodeOptions | None,
    *,
    field_map: Mapping[str, str] | None = None,
    sample_loader: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
    part_filter: Iterable[str] | Callable[[str], bool] | None = None,
) -> TypedSource:
    """Return a dataset whose sample type is defined by a program instead of `dataset.yaml`.

    Args:
        raw: the raw samples.
        cls: class of its samples; None for crude data.
        decode: how parts are decoded; None leaves them as bytes.
        field_map: field → access, as in the file.
        sample_loader: decoded parts → fields.
        part_filter: names of selected parts, or a predicate; None for all.

    Raises:
        ConfigError: the type doesn't have one of the fields, or not exactly one of `field_map` and `sample_loader` is
            set.
    """
    path = meta_path(raw.path, DATASET_YAML)
    if cls is not None and (field_map is None) == (sample_loader is None):
        raise ConfigError("a sample type needs either a field_map or a sample_loader", path=path)
    kind = None if cls is None else type_of_class(cls)
    access = None if field_map is None else parse_field_map(dict(field_map), path)
    if kind is not None and access is not None:
        _require_fields(DatasetYaml(path, None, kind.name, access), kind)
    parts = part_filter if callable(part_filter) or part_filter is None else frozenset(part_filter)
    parts = parts_of(access) if access is not None else parts
    how = Typing(path, kind, access, sample_loader, parts, decode)
    given = {"field_map": field_map, "sample_loader": sample_loader, "part_filter": part_filter}
    return TypedSource(raw, how, (functools.partial(made_by_hand, **given), (raw, cls, decode)))


# --- parsing -----------------------------------------------------------------------------------------------------


def _type_named(value: dict[str, Any], path: str) -> tuple[str | None, str | None]:
    """Return module and class of the sample type; both None for crude data."""
    module, name = _text(value, "__module__", path), _text(value, "__class__", path)
    ours = module is None or module.partition(".")[0] == ENERGON.partition(".")[0]
    if "__function__" in value or not (ours and (name in (None, CRUDE, _STANDARD) or name in DATASETS)):
        raise UnsafeData(
            "the dataset is defined by a class or function of another program",
            path=path,
            found=f"{module}.{name or value.get('__function__')}",
            expected=", ".join((CRUDE, *DATASETS)),
            hint="In Python, raw=True returns the stored parts",
        )
    if name == CRUDE:
        return None, None
    if name is not None and name in DATASETS:
        return ENERGON, DATASETS[name]
    named: Any = value.get("sample_type")
    if not isinstance(named, dict) or "__class__" not in named:
        raise _wrong(path, "sample_type", named, "{__module__: …, __class__: …}")
    return _text(named, "__module__", path), _text(named, "__class__", path)


def _require_known_keys(value: dict[str, Any], path: str) -> None:
    unknown = [key for key in value if key not in _KNOWN and not key.startswith(_OLD_PREFIXES)]
    if unknown:
        raise ConfigError("unknown key", path=path, found=", ".join(unknown[:5]))


def _subset(said: Any, path: str) -> SaidSubset | None:
    if said is None:
        return None
    expected = "{absolute_range: [first, last or null], range: [0.0, 0.5]} or only one of them"
    given: dict[str, Any] = dict(said) if isinstance(said, dict) else {"": said}
    if given.get("__class__") == "DatasetSubset":  # the form that the original's reader converts
        del given["__class__"]
        given.pop("__module__", None)
    if set(given) - {"range", "absolute_range"}:
        raise _wrong(path, "subset", said, expected)
    samples, part = given.get("absolute_range"), given.get("range")
    if samples is not None and not (
        _is_pair(samples, int) or (_is_pair([0, *samples[:1]], int) and samples[1:] == [None])
    ):
        raise _wrong(path, "subset", said, expected)
    if part is not None and not _is_pair(part, int, float):
        raise _wrong(path, "subset", said, expected)
    start, stop = (0, None) if samples is None else samples
    low, high = (0.0, 1.0) if part is None else map(float, part)
    if start < 0 or (stop is not None and stop < start) or not 0 <= low <= high <= 1:
        raise _wrong(path, "subset", said, "ranges inside the split whose start is before their end")
    return SaidSubset(start, stop, (low, high))


def _is_pair(value: Any, *kinds: type[Any]) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) in kinds for one in value)


def _require_fields(found: DatasetYaml, sample_type: SampleType) -> None:
    if found.field_map is None:
        return
    unknown = [name for name in found.field_map if name not in sample_type.fields]
    missing = [name for name in sample_type.required if name not in found.field_map]
    if unknown or missing:
        what = f"the field map doesn't match {sample_type.name}"
        told = [*(f"unknown {name}" for name in unknown), *(f"no {name}" for name in missing)]
        fields = ", ".join(sample_type.fields)
        raise ConfigError(what, path=found.path, found=", ".join(told), expected=fields)


def _text(value: dict[str, Any], key: str, path: str) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise _wrong(path, key, found, "a text")
    return found


def _wrong(path: str, key: str, found: Any, expected: str) -> ConfigError:
    return ConfigError(f"invalid value for {key}", path=path, found=repr(found)[:80], expected=expected)


# --- types and code ----------------------------------------------------------------------------------------------


def _decoding(found: DatasetYaml, options: OpenOptions) -> DecodeOptions | None:
    arrays = None if options.image else array_options(options.decode)
    asked = options.image or (None if arrays is None else arrays.image)
    if asked == "bytes" or not (found.is_decoded or options.decode):
        return None
    image, trust = asked or found.image_decode, options.trust or options.trust_parts
    late = options.refuse_late and found.type_name is None
    usual = DecodeOptions(trust=trust, refuse_late=late)
    return usual if image is None else replace(usual, image=image, upright=arrays is not None and arrays.upright)


def _parts(store: Store, found: DatasetYaml) -> frozenset[str] | Callable[[str], bool] | None:
    if isinstance(found.part_filter, str):
        return _code(store, found, found.part_filter, "part_filter")
    if found.part_filter is not None:
        return frozenset(found.part_filter)
    return None if found.field_map is None else parts_of(found.field_map)


def _code(store: Store, found: DatasetYaml, named: str | None, default: str) -> Any:
    """Return a function of a Python file next to `dataset.yaml`. Runs that file, so it requires `trust=True`."""
    if named is None:
        return None
    file, _, function = named.partition(":")
    path = os.path.join(os.path.dirname(found.path), file)
    loader = _StoredCode(path, store.get(path))
    spec = importlib.util.spec_from_loader(f"penstock_dataset_code_{digest(path)}", loader)
    if spec is None:
        raise _wrong(found.path, default, named, "file.py:function")
    module = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except Exception as error:  # arbitrary code
        told = f"{type(error).__name__}: {error}"
        raise ConfigError("the code in the dataset failed", path=path, found=told) from error
    made = getattr(module, function or default, None)
    if not callable(made):
        raise ConfigError("unknown function", path=path, found=function or default)
    return made


class _StoredCode(importlib.abc.SourceLoader):
    """Loader of Python source from a store. Unlike the import system, it writes no bytecode next to the file."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        return self._source
