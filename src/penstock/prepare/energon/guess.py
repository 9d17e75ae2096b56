"""Guess the sample type of a dataset and the sources of its fields from the first samples.

The guess is only a proposal that the assistant shows. Nothing here reads or writes files.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._limits import count_in
from penstock.codec.fieldmap import find, parse_access
from penstock.codec.image_header import read_image_header
from penstock.codec.media_bytes import MediaBytes
from penstock.codec.parts import AV_SUFFIXES, IMAGE_SUFFIXES, DecodeOptions, decode_part, suffix_of
from penstock.errors import ConfigError, PenstockError
from penstock.formats.samples.webdataset.find import PeekedSample
from penstock.formats.samples.webdataset.nvmeta import DATASET_YAML
from penstock.formats.samples.webdataset.sample_types import TYPES, SampleType
from penstock.prepare.energon.plan import DatasetOptions

CRUDE = "CrudeWebdataset"
MENU = (
    *("CaptioningSample", "ImageClassificationSample", "ImageSample", "InterleavedSample", "MultiChoiceVQASample"),
    *("OCRSample", "Sample", "SimilarityInterleavedSample", "TextSample", "VQASample", "VidQASample", CRUDE),
    "VQAOCRSample",
)
"""Choices of the assistant, numbered as in Energon 7.4.1, which doesn't have the last one."""

_TEXT_SUFFIXES = ("txt", "text", "transcript")
_JSON_SUFFIXES = ("json", "jsn")
_LABEL_SUFFIXES = ("cls", "cls2")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "caption": ("caption", "captions", "text", "description", "alt_text", "title"),
    "context": ("context", "question", "prompt", "instruction"),
    "answers": ("answers", "answer"),
    "answer_weights": ("answer_weights", "weights"),
    "choices": ("choices", "options"),
    "correct_choice_idx": ("correct_choice_idx", "correct_idx", "correct"),
    "text": ("text", "caption", "content"),
    "label": ("label", "class", "cls"),
    "label_name": ("label_name", "class_name"),
    "sequence": ("sequence", "interleaved"),
    "images": ("images",),
    "texts": ("texts",),
}
_ORDER = ("MultiChoiceVQASample", "VidQASample", "VQASample", "InterleavedSample", "CaptioningSample")
_TELLING = {"MultiChoiceVQASample": ["choices"], "VQASample": ["answers"], "ImageClassificationSample": ["label"]}
"""Optional fields that distinguish a type from simpler ones."""
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Guess:
    sample_type: str
    field_map: dict[str, str]
    reason: str


def guess(samples: Sequence[PeekedSample]) -> Guess:
    """Return the sample type that fits all samples and uses most of their parts; `CRUDE` if none fits."""
    if not samples:
        return Guess(CRUDE, {}, "no samples to inspect")
    common = [part for part in samples[0].parts if all(part in one.parts for one in samples)]
    listed = ", ".join(common)
    for name in (*_ORDER, "ImageClassificationSample", "ImageSample", "TextSample"):
        fields = guess_fields(name, samples)
        one = TYPES[name]
        if not {*one.required, *_TELLING.get(name, ())} <= set(fields):
            continue
        used = {text.partition("[")[0] for text in fields.values()}
        if name in ("ImageSample", "TextSample") and used != set(common):
            continue
        return Guess(name, fields, f"the first samples have {listed}")
    return Guess(CRUDE, {}, f"no sample type matches {listed or 'differing parts'}: parts are used as they are")


def guess_fields(name: str, samples: Sequence[PeekedSample]) -> dict[str, str]:
    """Return field → probable source, for fields of a sample type that all samples have."""
    if name not in TYPES or not samples:
        return {}
    found: dict[str, str] = {}
    for field in TYPES[name].fields:
        for place in _places(field, samples[0]):
            with contextlib.suppress(ConfigError):
                try_field(place, samples)
                found[field] = place
                break
    return found


def sample_type_named(text: str) -> str:
    """Return the sample type with this number in `MENU`, name (with or without `Sample`), or dataset class.

    Raises:
        ConfigError: there isn't one.
    """
    text = text.strip()
    if (number := count_in(text, len(MENU))) is not None:
        return MENU[number]
    if text.lower() in ("crude", "crude sample", CRUDE.lower()):
        return CRUDE
    short = text.lower().removesuffix("webdataset")
    for name in TYPES:
        if text.lower() == name.lower() or (short and short == name.removesuffix("Sample").lower()):
            return name
    raise ConfigError("unknown sample type", found=text or "nothing", expected=", ".join((*TYPES, CRUDE)))


def try_field(text: str, samples: Sequence[PeekedSample]) -> list[str]:
    """Return the text of the value that a field map entry finds in each sample; raises `ConfigError`."""
    access = parse_access(text)
    shown: list[str] = []
    for one in samples:
        wanted = [part for part in dict.fromkeys(option[0] for option in access) if part in one.parts]
        if not wanted:
            raise ConfigError(
                f"the sample {one.key!r} has no part {access[0][0]!r}", expected=f"one of {', '.join(one.parts)}"
            )
        if all(len(option) == 1 for option in access):
            shown.append(show_part(wanted[0], *one.parts[wanted[0]]))
            continue
        try:
            shown.append(_short(find(access, {part: _decoded(part, *one.parts[part]) for part in wanted})))
        except PenstockError as error:
            what = f"{text} matches nothing in the sample {one.key!r}"
            raise ConfigError(what, found=error.found, expected=error.expected) from None
    return shown


def check_field_map(fields: Mapping[str, str], sample_type: str, samples: Sequence[PeekedSample]) -> dict[str, str]:
    """Check a field map against the first samples; return field → text of its value in the first one.

    Raises:
        ConfigError: a field is unknown or missing, or finds nothing.
    """
    one = TYPES[sample_type]
    unknown = [name for name in fields if name not in one.fields]
    missing = [name for name in one.required if name not in fields]
    if unknown or missing:
        found = [*(f"unknown {name}" for name in unknown), *(f"no {name}" for name in missing)]
        what = f"the field map doesn't match {one.name}"
        raise ConfigError(what, found=", ".join(found), expected=", ".join(one.fields))
    shown: dict[str, str] = {}
    for name, text in fields.items():
        try:
            shown[name] = (try_field(text, samples) or ["no samples to inspect"])[0]
        except ConfigError as error:
            raise ConfigError(f"{name}: {error.what}", found=error.found, expected=error.expected) from None
    return shown


def show_part(part: str, size_bytes: int, content: bytes) -> str:
    """Return a short description of a part: size of an image, the text, the beginning of JSON."""
    suffix = suffix_of(part).lower()
    if suffix in IMAGE_SUFFIXES:
        try:
            found = read_image_header(MediaBytes(len(content), content, lambda at, count: content[at : at + count]))
        except PenstockError as error:
            return f"{size_bytes:,} bytes: {error.what}"
        if found is not None:
            return f"{size_bytes:,} bytes: {found.format} image, {found.width} x {found.height}, {found.mode}"
    if suffix in (*_TEXT_SUFFIXES, *_JSON_SUFFIXES, *_LABEL_SUFFIXES):
        text = content[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "replace")
        return _short(text.strip() if suffix not in _JSON_SUFFIXES else re.sub(r"\s+", " ", text).strip())
    return f"{size_bytes:,} bytes"


def dataset_options(
    sample_type: str,
    field_map: Mapping[str, str] | None,
    parts: Sequence[str],
    *,
    name: str = DATASET_YAML,
) -> DatasetOptions:
    """Return the content of `dataset.yaml`; without a field map, with a `sample_loader.py` to be completed."""
    if sample_type == CRUDE or field_map is not None:
        return DatasetOptions(name, sample_type, field_map)
    return DatasetOptions(name, sample_type, sample_loader=loader_template(TYPES[sample_type], parts))


def loader_template(sample_type: SampleType, parts: Sequence[str]) -> str:
    """Return the text of a `sample_loader.py` that the user completes."""
    listed = ", ".join(sorted(parts)) or "none"
    notes = {name: f"optional, by default {value!r}" for name, value in sample_type.defaults.items()}
    notes |= dict.fromkeys(sample_type.required, "required")
    fields = "\n".join(f"        {name}=...,  # {notes[name]}" for name in sample_type.fields)
    return (
        f'"""Makes a {sample_type.name} of the parts of a sample. The first samples have: {listed}."""\n\n\n'
        "def sample_loader(raw: dict) -> dict:\n"
        '    """`raw` has the decoded parts, and `__key__`; each `...` below is to be filled in."""\n'
        "    return dict(\n"
        '        __key__=raw["__key__"],\n'
        f"{fields}\n"
        "    )\n\n\n"
        "def part_filter(part: str) -> bool:\n"
        '    """Which parts are read."""\n'
        f"    return part in {tuple(sorted(parts))!r}\n"
    )


def parse_patterns(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Return `(split, regular expression)` of each `NAME:REGEX`; raises `ConfigError`."""
    pairs: list[tuple[str, str]] = []
    for text in texts:
        name, colon, pattern = text.partition(":")
        if not (name and colon and pattern):
            raise ConfigError("not a split name and a pattern", found=text, expected="such as train:train/.*")
        pairs.append((name, pattern))
    return pairs


def _places(field: str, sample: PeekedSample) -> list[str]:
    """Return possible sources of a field, the most likely first."""
    if field == "image":
        return [part for part in sample.parts if suffix_of(part).lower() in IMAGE_SUFFIXES]
    if field == "video":
        return [part for part in sample.parts if suffix_of(part).lower() in AV_SUFFIXES]
    found = [part for part in sample.parts if part in _NAMES.get(field, ())]
    if field in ("text", "caption"):
        found += [part for part in sample.parts if suffix_of(part) in _TEXT_SUFFIXES]
    if field == "label":
        found += [part for part in sample.parts if suffix_of(part) in _LABEL_SUFFIXES]
    for part, (size_bytes, content) in sample.parts.items():
        if suffix_of(part) not in _JSON_SUFFIXES:
            continue
        try:
            value = _decoded(part, size_bytes, content)
        except PenstockError:
            continue
        if isinstance(value, dict):
            found += [f"{part}[{name}]" for name in _NAMES.get(field, ()) if name in value]
    return found


def _decoded(part: str, size_bytes: int, content: bytes) -> Any:
    if len(content) < size_bytes:
        raise ConfigError(f"the part {part!r} is too large to inspect", found=f"{size_bytes:,} bytes")
    return decode_part(part, content, DecodeOptions())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
