"""Types of samples: the required fields of a typed sample, and the defaults of its other fields.

A type is a name and its fields; samples themselves are dicts. Names in YAML are looked up in the table of Energon's
types and among the types registered by the user. No modules are imported for them.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, is_typeddict

from penstock.errors import ConfigError, UnsafeData

ENERGON = "megatron.energon"

T = TypeVar("T", bound=type)


@dataclass(frozen=True, slots=True)
class SampleType:
    """A type of samples.

    Attributes:
        name: name of its class.
        required: fields that every sample has.
        defaults: the other fields and their default values.
        cls: the class that describes it, if there is one.
    """

    name: str
    required: tuple[str, ...]
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    cls: Any = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.required, *self.defaults)


_ANSWERS = ("answers", "answer_weights")
_OCR = tuple(
    f"{what}_{kind}"
    for what, kinds in (
        ("block", ("boxes", "classes", "text")),
        ("lines", ("boxes", "text")),
        ("words", ("boxes", "text")),
        ("chars", ("boxes", "text")),
    )
    for kind in kinds
)
_SIMILARITY = ("audio", "video", "similarity_matrix", "matched_text_indices")


def _optional(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names)


TYPES: Mapping[str, SampleType] = MappingProxyType(
    {
        one.name: one
        for one in (
            SampleType("Sample", ()),
            SampleType("CaptioningSample", ("image", "caption")),
            SampleType("ImageSample", ("image",)),
            SampleType("ImageClassificationSample", ("image",), _optional("label", "label_name")),
            SampleType("InterleavedSample", ("sequence",)),
            SampleType("MultiChoiceVQASample", ("image", "context"), {"choices": None, "correct_choice_idx": 0}),
            SampleType("OCRSample", ("image", "text"), _optional(*_OCR)),
            SampleType("SimilarityInterleavedSample", ("images", "texts"), _optional(*_SIMILARITY)),
            SampleType("TextSample", ("text",)),
            SampleType("VidQASample", ("video", "context"), _optional(*_ANSWERS)),
            SampleType("VQASample", ("image", "context"), _optional(*_ANSWERS)),
            SampleType("VQAOCRSample", ("image", "context", "text"), _optional(*_ANSWERS, "words_boxes", "words_text")),
        )
    }
)
"""Energon's types by class name."""

DATASETS: Mapping[str, str] = MappingProxyType(
    {f"{name.removesuffix('Sample')}Webdataset": name for name in TYPES if name != "Sample"}
)
"""Classes of the older form of `dataset.yaml`, up to 3.x → the type of their samples."""

# Global to the process, like classes: a registered type is known wherever data is opened.
_registered: dict[str, SampleType] = {}


def register_sample_type(cls: T) -> T:
    """Register a class so that `dataset.yaml` may name it without `trust`; as a function or a decorator.

    Args:
        cls: a dataclass or TypedDict. Fields without a default are required. Names that begin with two underscores,
            which every sample has, don't count as fields.

    Returns:
        `cls`.

    Raises:
        ConfigError: `cls` is neither a dataclass nor a TypedDict.

    Examples:
        >>> from dataclasses import dataclass
        >>> import penstock as ps
        >>> @ps.register_sample_type
        ... @dataclass
        ... class Picture:
        ...     image: object
        ...     caption: str
    """
    one = type_of_class(cls)
    _registered[f"{cls.__module__}.{cls.__qualname__}"] = one
    return cls


def type_of_class(cls: Any) -> SampleType:
    if is_typeddict(cls):
        names = [name for name in cls.__annotations__ if not name.startswith("__")]
        required = tuple(name for name in names if name in cls.__required_keys__)
        return SampleType(cls.__name__, required, _optional(*(name for name in names if name not in required)), cls)
    if isinstance(cls, type) and dataclasses.is_dataclass(cls):
        fields = [one for one in dataclasses.fields(cls) if one.init and not one.name.startswith("__")]
        defaults = {one.name: _default(one) for one in fields if _has_default(one)}
        return SampleType(cls.__name__, tuple(one.name for one in fields if not _has_default(one)), defaults, cls)
    found = getattr(cls, "__name__", type(cls).__name__)
    raise ConfigError("not a sample type", found=found, expected="a dataclass or a TypedDict")


def find_type(module: str | None, name: str, *, trust: bool, path: str) -> SampleType:
    """Return the type named by a YAML file.

    Args:
        module: its `__module__`.
        name: its `__class__`.
        trust: import the module if the type is unknown.
        path: the YAML file, for errors.

    Raises:
        UnsafeData: the type is unknown, and `trust` is false.
        ConfigError: the module has no such type.
    """
    registered = _registered.get(f"{module}.{name}")
    if registered is None:
        same_name = [one for key, one in _registered.items() if key.rpartition(".")[2] == name]
        registered = same_name[0] if len(same_name) == 1 else None
    if registered is not None:
        return registered
    if name in TYPES and (module is None or module.partition(".")[0] == ENERGON.partition(".")[0]):
        return TYPES[name]
    if not trust:
        raise UnsafeData(
            "unknown sample type: importing its module would run its code",
            path=path,
            found=f"{module}.{name}",
            expected=", ".join(TYPES),
            hint="Pass --trust (trust=True) if you trust that module. In Python, register the type with "
            "penstock.register_sample_type(cls), or read the stored parts with raw=True",
        )
    try:
        cls = getattr(importlib.import_module(module or ENERGON), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError("unknown sample type", path=path, found=f"{module}.{name}", hint=str(error)) from None
    return type_of_class(cls)


def _has_default(one: dataclasses.Field[Any]) -> bool:
    return one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING


def _default(one: dataclasses.Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not dataclasses.MISSING else one.default
