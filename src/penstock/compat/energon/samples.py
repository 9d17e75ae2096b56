"""Energon's sample types as dataclasses. Field types that are tensors there are whatever the decoder gives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, dataclass_transform

from penstock.errors import ConfigError
from penstock.types import AVMetadata, ImageMetadata, SourceInfo

__all__ = ["AVMetadata", "ImageMetadata", "SourceInfo"]

T = TypeVar("T", bound=type)


@dataclass_transform(kw_only_default=True)
def edataclass(cls: T) -> T:
    """Apply `@dataclass(slots=True, kw_only=True)`.

    Examples:
        >>> from penstock.compat.energon import Sample, edataclass
        >>> @edataclass
        ... class Scored(Sample):
        ...     score: float
        >>> Scored(__key__="a/0", __restore_key__=(), score=0.5).score
        0.5
    """
    made: Any = dataclass(slots=True, kw_only=True)
    return made(cls)


def pinned(value: Any) -> Any:
    """Return `value` with its tensors in pinned memory, by its own `pin_memory` method or recursively."""
    own = getattr(type(value), "pin_memory", None)
    return value.pin_memory() if own is not None else _pinned_inside(value)


def _pinned_inside(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: pinned(one) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [one.name for one in dataclasses.fields(value) if one.init]
        return type(value)(**{name: pinned(getattr(value, name)) for name in fields})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(pinned, value))
    return type(value)(map(pinned, value)) if isinstance(value, (list, tuple)) else value


@edataclass
class Sample:
    """Base class of samples.

    Attributes:
        __key__: name in its dataset.
        __restore_key__: key from which it can be made again, see `SavableDataLoader.restore_sample`.
        __subflavors__: subflavors of its dataset.
        __sources__: the files that it was read from.

    Examples:
        >>> from penstock.compat.energon import Sample
        >>> sample = Sample(__key__="a/0", __restore_key__=(), __subflavors__={"lang": "en"})
        >>> sample.__key__, sample.__subflavors__
        ('a/0', {'lang': 'en'})
    """

    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavors__: dict[str, Any] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_sample: Any, **fields: Any) -> Self:
        """Return a sample with the four base fields of another one, and these fields."""
        base = {name: _value(base_sample, name) for name in BASE_FIELDS if name not in fields}
        return cls(**base, **fields)

    @classmethod
    def extend(cls, src: Any, **fields: Any) -> Self:
        """Return a sample with all fields of `src`, an object of a base class, and these fields."""
        return _extended(cls, src, fields)

    @classmethod
    def from_joined(cls, *members: Any, **named: Any) -> Self:
        """Return a sample with the fields of all members.

        The last member wins if fields are equal. Key and subflavors come from the first member, sources from all.
        """
        there = [one for one in (*members, *named.values()) if one is not None]
        if not there:
            raise ConfigError("a join without samples", expected="a primary sample")
        own = {one.name for one in dataclasses.fields(cls)} - set(BASE_FIELDS)
        fields: dict[str, Any] = {}
        for one in there:
            fields.update({name: _value(one, name) for name in own if _has(one, name)})
        sources = tuple(source for one in there for source in _value(one, "__sources__") or ())
        return cls.derive_from(there[0], **fields, __sources__=sources)

    def pin_memory(self) -> Self:
        """Return the sample with its tensors in pinned memory."""
        return _pinned_inside(self)


BASE_FIELDS = ("__key__", "__restore_key__", "__subflavors__", "__sources__")


@edataclass
class Batch:
    """Batch of several samples; the base fields are lists, and the sources one tuple.

    Examples:
        >>> from penstock.compat.energon import Batch, TextSample, edataclass
        >>> @edataclass
        ... class TextBatch(Batch):
        ...     text: list[str]
        >>> samples = [TextSample(__key__=f"a/{n}", __restore_key__=(), text=f"text {n}") for n in range(2)]
        >>> batch = TextBatch.from_samples(samples)
        >>> batch.__key__, batch.text
        (['a/0', 'a/1'], ['text 0', 'text 1'])
    """

    __key__: list[str]
    __restore_key__: tuple[Any, ...]
    __subflavors__: list[dict[str, Any] | None] | None = None
    __sources__: tuple[SourceInfo, ...] | None = None

    @classmethod
    def derive_from(cls, base_batch: Any, **fields: Any) -> Self:
        """Return a batch with the base fields of another one, and these fields."""
        base = {name: _value(base_batch, name) for name in BASE_FIELDS if name not in fields}
        return cls(**base, **fields)

    @classmethod
    def extend(cls, src: Any, **fields: Any) -> Self:
        """Return a batch with all fields of `src`, an object of a base class, and these fields."""
        return _extended(cls, src, fields)

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **fields: Any) -> Self:
        """Return a batch with lists of the samples' fields, also for tensors, like the original.

        The sources become one tuple, and empty subflavors are left out. To pad and stack tensors, pass them:
        `image=batch_pad_stack([one.image for one in samples])`.
        """
        made: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name in fields:
                continue
            values = [_value(one, field.name) for one in samples if _has(one, field.name)]
            if field.name in ("__sources__", "__subflavors__") and all(one is None for one in values):
                continue
            if field.name == "__sources__":
                made[field.name] = tuple(source for one in values for source in one or ())
            elif field.name == "__subflavors__":
                made[field.name] = [one for one in values if one]
            elif field.name == "__restore_key__":
                made[field.name] = tuple(values)
            else:
                made[field.name] = values
        return cls(**made, **fields)

    def pin_memory(self) -> Self:
        """Return the batch with its tensors in pinned memory."""
        return _pinned_inside(self)


@edataclass
class TextSample(Sample):
    """Sample with a text.

    Examples:
        >>> from penstock.compat.energon import TextSample
        >>> sample = TextSample(__key__="a/0", __restore_key__=(), text="A penstock feeds a turbine.")
        >>> sample.text
        'A penstock feeds a turbine.'
    """

    text: str


@edataclass
class ImageSample(Sample):
    """Sample with an image.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import ImageSample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> sample = ImageSample(__key__="0", __restore_key__=(), image=image)
        >>> sample.image.shape
        (6, 8, 3)
    """

    image: Any


@edataclass
class CaptioningSample(Sample):
    """Sample with an image and its caption.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import CaptioningSample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> sample = CaptioningSample(__key__="0", __restore_key__=(), image=image, caption="a gate")
        >>> sample.caption, sample.image.shape
        ('a gate', (6, 8, 3))
    """

    image: Any
    caption: str


@edataclass
class ImageClassificationSample(Sample):
    """Sample with an image and its class.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import ImageClassificationSample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> sample = ImageClassificationSample(__key__="0", __restore_key__=(), image=image, label=3, label_name="weir")
        >>> sample.label, sample.label_name
        (3, 'weir')
    """

    image: Any
    label: int | None = None
    label_name: str | None = None


@edataclass
class VQASample(Sample):
    """Sample with a question about an image, and answers.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import VQASample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> sample = VQASample(__key__="0", __restore_key__=(), image=image, context="What is it?", answers=["a gate"])
        >>> sample.context, sample.answers
        ('What is it?', ['a gate'])
    """

    image: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any = None


@edataclass
class MultiChoiceVQASample(Sample):
    """Sample with a question about an image, and answers to choose from.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import MultiChoiceVQASample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> question = {"context": "What is this?", "choices": ["a gate", "a weir"], "correct_choice_idx": 1}
        >>> sample = MultiChoiceVQASample(__key__="a/0", __restore_key__=(), image=image, **question)
        >>> sample.choices[sample.correct_choice_idx]
        'a weir'
    """

    image: Any
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class OCRSample(Sample):
    """Sample with an image of text, and places and texts of its blocks, lines, words and letters.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import OCRSample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> words = {"words_boxes": np.array([[0, 0, 3, 2], [4, 0, 8, 2]]), "words_text": ["slow", "down"]}
        >>> sample = OCRSample(__key__="a/0", __restore_key__=(), image=image, text="slow down", **words)
        >>> sample.words_text[1], sample.words_boxes[1].tolist()
        ('down', [4, 0, 8, 2])
    """

    image: Any
    text: str
    block_boxes: Any = None
    block_classes: Any = None
    block_text: list[str] | None = None
    lines_boxes: Any = None
    lines_text: list[str] | None = None
    words_boxes: Any = None
    words_text: list[str] | None = None
    chars_boxes: Any = None
    chars_text: list[str] | None = None


@edataclass
class VQAOCRSample(Sample):
    """Sample with a question about an image of text, and answers.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import VQAOCRSample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> sample = VQAOCRSample(__key__="0", __restore_key__=(), image=image, context="What is written?", text="slow")
        >>> sample.context, sample.text
        ('What is written?', 'slow')
    """

    image: Any
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: Any = None
    words_boxes: Any = None
    words_text: list[str] | None = None


@edataclass
class InterleavedSample(Sample):
    """Sample with an alternating sequence of texts and images.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import InterleavedSample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> sample = InterleavedSample(__key__="a/0", __restore_key__=(), sequence=["A gate:", image, "It is open."])
        >>> [type(part).__name__ for part in sample.sequence]
        ['str', 'ndarray', 'str']
    """

    sequence: list[Any]


@edataclass
class SimilarityInterleavedSample(Sample):
    """Sample with texts and images, and their similarity.

    Examples:
        >>> import numpy as np
        >>> from penstock.compat.energon import SimilarityInterleavedSample
        >>> image = np.zeros((6, 8, 3), np.uint8)
        >>> fields = {"images": [image], "texts": ["It is open.", "A gate:"], "matched_text_indices": [1]}
        >>> sample = SimilarityInterleavedSample(__key__="a/0", __restore_key__=(), **fields)
        >>> sample.texts[sample.matched_text_indices[0]]
        'A gate:'
    """

    images: list[Any]
    texts: list[str]
    audio: list[Any] | None = None
    video: list[Any] | None = None
    similarity_matrix: Any = None
    matched_text_indices: list[int] | None = None


@edataclass
class VidQASample(Sample):
    """Sample with a question about a video, and answers.

    Examples:
        >>> from penstock.compat.energon import AVDecoder, VidQASample, WebdatasetFileStore
        >>> film = AVDecoder(WebdatasetFileStore("films").get("000.mp4"))
        >>> sample = VidQASample(__key__="000", __restore_key__=(), video=film, context="What is shown?")
        >>> sample.video.get_metadata().video_num_frames, sample.context
        (6, 'What is shown?')
    """

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Any = None


TYPES: Mapping[str, type[Sample]] = {
    one.__name__: one
    for one in (
        Sample, TextSample, ImageSample, CaptioningSample, ImageClassificationSample, VQASample, MultiChoiceVQASample,
        OCRSample, VQAOCRSample, InterleavedSample, SimilarityInterleavedSample, VidQASample,
    )
}  # fmt: skip
"""Classes by name, as a `dataset.yaml` names them."""


def typed(sample: Mapping[str, Any], cls: type[Any]) -> Any:
    """Return the sample as an object of a class, without values for which the class has no field."""
    return cls(**{name: sample[name] for name in _init_names(cls) if name in sample})


@functools.cache
def _init_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(cls) if one.init)


def basic_sample_keys(crude_sample: Mapping[str, Any], additional_source_info: tuple[SourceInfo, ...] = ()) -> Any:
    """Return the base fields of a crude sample, to be passed to the cooked one.

    Examples:
        >>> from penstock.compat.energon import TextSample, basic_sample_keys
        >>> crude = {"__key__": "a/0", "__restore_key__": ("a", 0), "txt": "Open the gate slowly."}
        >>> basic_sample_keys(crude)
        {'__key__': 'a/0', '__restore_key__': ('a', 0)}
        >>> TextSample(**basic_sample_keys(crude), text=crude["txt"]).text
        'Open the gate slowly.'
    """
    try:  # samples of our readers have all four
        found = {
            "__key__": crude_sample["__key__"],
            "__restore_key__": crude_sample["__restore_key__"],
            "__subflavors__": crude_sample["__subflavors__"],
            "__sources__": crude_sample["__sources__"],
        }
    except KeyError:
        found = {name: crude_sample[name] for name in BASE_FIELDS if name in crude_sample}
    if additional_source_info:
        found["__sources__"] = (*(found.get("__sources__") or ()), *additional_source_info)
    return found


def sources_of(sample: Any) -> list[SourceInfo] | None:
    """Return the sources of a sample, a list of samples or a batch, or None if they are unknown."""
    found: list[SourceInfo] = []
    for one in sample if isinstance(sample, list) else [sample]:
        for source in _value(one, "__sources__") or ():
            found += source if isinstance(source, (tuple, list)) else [source]  # in a batch, those of each sample
    return found or None


def _has(sample: Any, name: str) -> bool:
    return name in sample if isinstance(sample, Mapping) else hasattr(sample, name)


def _value(sample: Any, name: str) -> Any:
    return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name, None)


def _extended(cls: Any, src: Any, fields: dict[str, Any]) -> Any:
    if not issubclass(cls, type(src)):
        raise ConfigError(
            "only an object of a base class can be extended", found=type(src).__name__, expected=cls.__name__
        )
    base = {one.name: getattr(src, one.name) for one in dataclasses.fields(src) if one.init and one.name not in fields}
    return cls(**base, **fields)
