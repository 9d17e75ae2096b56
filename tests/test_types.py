"""The data that passes between layers: frozen, slotted, comparable, picklable."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import pickle

import pytest

from penstock import types
from penstock.types import (
    Action,
    AVMetadata,
    Extent,
    Field,
    Finding,
    ImageMetadata,
    Location,
    Manifest,
    OpenOptions,
    Place,
    Schema,
    Sniff,
    SourceInfo,
    Traits,
)

EXAMPLES = [
    ImageMetadata(3, 4, "PNG", "RGB"),
    AVMetadata(video_width=4),
    Action("pbin.tail", "a.pbin", "cut it"),
    Extent("a.bin", 1 << 40, 10),
    Field("tokens", "tokens", "uint16", (None,)),
    Finding("pbin.tail", "error", "a.pbin", 12, "3", "4", "cut it"),
    Location(5, ("books",), 0, 7),
    Manifest("pbin", 3, 100),
    OpenOptions(),
    Place(),
    Schema((Field("text", "text"),)),
    Sniff(True, "it has the header"),
    SourceInfo("set", 3, "a.tar", ("1.txt",)),
    Traits(),
]


def test_every_type_has_an_example() -> None:
    kinds = {kind for _, kind in inspect.getmembers(types, dataclasses.is_dataclass)}
    assert kinds == {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_frozen_slotted_and_picklable(example: object) -> None:
    name = dataclasses.fields(example)[0].name
    if not isinstance(example, SourceInfo):  # one a sample: to freeze it takes longer than to make it
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(example, name, None)
    assert not hasattr(example, "__dict__")
    assert pickle.loads(pickle.dumps(example)) == example
    assert dataclasses.replace(example) == example


def test_defaults() -> None:
    assert OpenOptions().flavor == "modalities"
    assert OpenOptions().read == "auto"
    assert not OpenOptions().trust
    assert Manifest("pbin", 0, 0).inputs == {}
    assert Manifest("pbin", 0, 0).inputs is not Manifest("pbin", 0, 0).inputs


def test_options_pickled_by_version_0_2_0_keep_their_fields() -> None:
    stored = (
        "fCQCk000000001t4sc~|b98TGYc6zoaAk9pj0;b2Wo}P!bZKvHbCi>mDS?z-lqie^baG*7Zj_7)ZEs{@Y-x09Wpk8?iB3*VPK*R$b#!l(PK*V3"
        "cxW~>l!%FmiB3*VPKi!v2aE-EX>N2llx1Qr"
    )
    expected = OpenOptions(split="train", validate_hash="xxh64", excludes=False, follow_links=True, decode="uint8")
    assert pickle.loads(base64.b85decode(stored)) == expected
    assert list(OpenOptions.__match_args__) == [one.name for one in dataclasses.fields(OpenOptions)]
