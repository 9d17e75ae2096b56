"""What the fields of Energon's sample types hold: an image, text, or sound and video."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.codec.av import AVData, AVDecoder
from penstock.codec.parts import DecodeOptions, decode_image
from penstock.errors import Corrupt, PenstockError
from penstock.formats.samples.webdataset.sample_types import TYPES, SampleType

_AVIF = (b"ftypavif", b"ftypavis")


def require_images(sample_type: SampleType, fields: Mapping[str, Any]) -> None:
    """Raise `Corrupt` if a field that its type declares an image isn't an array of pixels."""
    for name in image_fields(sample_type):
        value = fields.get(name)
        if value is not None and not isinstance(value, np.ndarray):
            raise _not_one(name, value, "an image")


def image_fields(sample_type: SampleType) -> tuple[str, ...]:
    """The fields of a type that hold one image."""
    return ("image",) if "image" in sample_type.fields else ()


def wrong_fields(sample_type: SampleType, fields: Mapping[str, Any]) -> Iterator[Corrupt]:
    """What is wrong with the fields of a sample, decoded as by default; nothing for types of other programs."""
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
    """Whether a value is text, or a number that stands for one, as the part `cls` gives it."""
    return isinstance(value, str | int | float)


def _is_av(value: Any) -> bool:
    return isinstance(value, AVDecoder | AVData)


_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "image": ("an image", _is_image),
    **dict.fromkeys(("caption", "context", "text", "label_name"), ("text", _is_text)),
    **dict.fromkeys(("video", "audio"), ("an audio or video file", _is_av)),
}
