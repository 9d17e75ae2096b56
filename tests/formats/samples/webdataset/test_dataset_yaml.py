"""`dataset.yaml` in all its forms, against typed samples of the original; and what it may not do."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import pytest

import penstock as ps
from penstock.codec.energon_yaml import load
from penstock.errors import ConfigError, Corrupt, FormatError, NotFound, UnsafeData, Unsupported
from penstock.formats.samples.webdataset import sample_types
from penstock.formats.samples.webdataset.dataset_yaml import parse_dataset_yaml, typed_view
from penstock.formats.samples.webdataset.sample_types import TYPES, register_sample_type
from penstock.formats.samples.webdataset.source import open_raw
from penstock.formats.samples.webdataset.typed import TypedSource
from penstock.store.local import LocalStore
from penstock.types import OpenOptions

GOLDEN = Path(__file__).parents[3] / "golden" / "energon"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "typed.json").read_text(encoding="utf-8"))
CAPTIONING = "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"
FIELD_MAP = "field_map: {image: jpg, caption: txt}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "captioning" / "shards", tmp_path / "set" / "shards")
    shutil.copytree(GOLDEN / "captioning" / "nv-meta", tmp_path / "set" / ".nv-meta")
    return tmp_path / "set"


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_types, "_registered", {})


def view(folder: Path, config: str, split: str = "val", **options: Any) -> TypedSource:
    store, given = LocalStore(), OpenOptions(split=split, **options)
    raw = open_raw(store, str(folder), dataclasses.replace(given, columns=None))
    return typed_view(raw, store, str(folder), given, dataset_config=config)


def write(folder: Path, text: str) -> None:
    (folder / ".nv-meta" / "dataset.yaml").write_text(text, encoding="utf-8")


def tensor_digest(image: Any) -> tuple[list[int], str]:
    pixels = (np.asarray(image).astype(np.float32) / np.float32(255)).transpose(2, 0, 1)
    return list(pixels.shape), hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()


@pytest.mark.parametrize("config", EXPECTED)
def test_as_the_original(folder: Path, config: str) -> None:
    expected = EXPECTED[config]
    if "error" in expected:
        source = view(folder, config, expected["split"])
        with pytest.raises(Corrupt, match="'text'"):
            source[0]
        return
    source = view(folder, config, expected["split"], trust="loader" in config)
    assert len(source) == expected["count"]
    for index, sample in enumerate(expected["samples"]):
        found = source[index]
        assert found["__key__"] == sample["key"]
        assert found["__subflavors__"] == sample["subflavors"]
        told = [[one.shard_name, list(one.file_names), one.index] for one in found["__sources__"]]
        assert told == sample["sources"]
        names = [name for name in found if not name.startswith("__")]
        assert sorted(names) == sorted(sample["fields"])
        for name, value in sample["fields"].items():
            if isinstance(value, dict):
                shape, sha256 = tensor_digest(found[name])
                assert shape == value["shape"]
                # JPEG is decoded a little differently by other versions of libjpeg.
                assert sha256 == value["sha256"] or name == "image"
            else:
                assert found[name] == value


def test_opened_by_name(folder: Path) -> None:
    source = ps.open(folder, split="val")
    assert isinstance(source, TypedSource)
    assert list(source[0]) == ["__key__", "__restore_key__", "__subflavors__", "__sources__", "image", "caption"]
    assert source[0]["image"].size == (8, 6)
    batch = source.get_batch([2, 0])
    assert batch["caption"] == [source[2]["caption"], source[0]["caption"]]
    raw = ps.open(folder, split="val", raw=True)
    assert isinstance(raw[0]["jpg"], bytes)
    assert raw.fingerprint != source.fingerprint
    again = pickle.loads(pickle.dumps(source))
    assert again[1]["caption"] == source[1]["caption"]
    assert again.fingerprint == source.fingerprint
    assert [field.name for field in source.schema.fields] == ["__key__", "image", "caption"]
    assert source.index_of("s2_003") == 3
    assert source.key_of(3) == "s2_003"
    assert source.get("s2_003.txt") == raw[3]["txt"]
    assert source.place_of(3) == raw.place_of(3)
    assert source.block_starts.tolist() == [0, 10]
    assert "CaptioningSample" in str(source)
    assert sum(1 for _ in source) == len(source) == source.split_size


def test_columns_are_fields_of_the_type(folder: Path) -> None:
    source = ps.open(folder, split="val", columns=["caption"])
    assert source[0] == {"caption": source[0]["caption"]}
    assert [field.name for field in source.schema.fields] == ["caption"]
    assert source.recipe()["columns"] == ["caption"]


def test_crude(folder: Path) -> None:
    source = view(folder, "crude.yaml")
    sample = source[0]
    assert sample["txt"].startswith("caption s2_000")
    assert sample["json"]["id"] == 20
    assert sample["jpg"].size == (8, 6)
    assert source.schema.open
    write(folder, "__module__: megatron.energon\n__class__: CrudeWebdataset\npart_filter: [txt]\nsubflavors: {a: 1}\n")
    sample = ps.open(folder, split="val")[0]
    assert "jpg" not in sample
    assert sample["__subflavors__"] == {"a": 1}
    assert sample["__sources__"][0].file_names == ("s2_000.txt",)


def test_undecoded(folder: Path) -> None:
    write(folder, "__module__: megatron.energon\n__class__: CrudeWebdataset\ndecoder: null\n")
    assert isinstance(ps.open(folder, split="val")[0]["json"], bytes)


def test_code_runs_with_trust_alone(folder: Path) -> None:
    marker = folder / "ran"
    code = ["import pathlib", f"pathlib.Path({str(marker)!r}).touch()", "def sample_loader(raw):"]
    code.append("    return dict(image=1, caption=raw['txt'], extra=2)")
    (folder / ".nv-meta" / "evil.py").write_text("\n".join(code))
    write(folder, CAPTIONING + "sample_loader: evil.py\npart_filter: [txt]\n")
    with pytest.raises(UnsafeData, match=r"evil\.py.*trust=True.*raw=True"):
        ps.open(folder, split="val")
    assert isinstance(ps.open(folder, split="val", raw=True)[0]["txt"], bytes)
    assert not marker.exists()
    source = ps.open(folder, split="val", trust=True)
    assert marker.exists()
    assert not (folder / ".nv-meta" / "__pycache__").exists()
    with pytest.raises(ConfigError, match="extra"):
        source[0]
    assert not [name for name in sys.modules if name.startswith("penstock_dataset_code")]


@pytest.mark.parametrize(
    ("loader", "error"),
    [("return 5", ConfigError), ("return dict(image=1)", Corrupt), ("return dict(image=1, caption=2)", None)],
)
def test_what_a_loader_gives(folder: Path, loader: str, error: type[Exception] | None) -> None:
    (folder / ".nv-meta" / "mine.py").write_text(f"def make(raw):\n    {loader}\n")
    write(folder, CAPTIONING + "sample_loader: mine.py:make\n")
    source = ps.open(folder, split="val", trust=True)
    if error is None:
        assert source[0]["caption"] == 2
        assert source[0]["__key__"] == "s2_000"
    else:
        with pytest.raises(error):
            source[0]


def test_missing_code(folder: Path) -> None:
    write(folder, CAPTIONING + "sample_loader: gone.py\n")
    with pytest.raises(NotFound):
        ps.open(folder, split="val", trust=True)
    (folder / ".nv-meta" / "broken.py").write_text("1 / 0\n")
    write(folder, CAPTIONING + "sample_loader: broken.py\n")
    with pytest.raises(ConfigError, match=r"broken\.py.*ZeroDivisionError"):
        ps.open(folder, split="val", trust=True)
    write(folder, CAPTIONING + "sample_loader: my_loader.py:nothing\n")
    with pytest.raises(ConfigError, match="nothing"):
        ps.open(folder, split="val", trust=True)


# --- types -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module whose import leaves a trace."""
    (tmp_path / "strange_types.py").write_text(
        "import pathlib, dataclasses\n"
        f"pathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
        "@dataclasses.dataclass\nclass Mine:\n    caption: str\n    picture: object = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "strange_types"
    sys.modules.pop("strange_types", None)


def test_unknown_classes_are_not_imported(folder: Path, module: str, tmp_path: Path) -> None:
    write(folder, f"sample_type: {{__module__: {module}, __class__: Mine}}\nfield_map: {{caption: txt}}\n")
    with pytest.raises(UnsafeData, match=r"strange_types\.Mine.*register_sample_type"):
        ps.open(folder, split="val")
    assert not (tmp_path / "imported").exists()
    assert "txt" in ps.open(folder, split="val", raw=True)[0]
    source = ps.open(folder, split="val", trust=True)
    assert (tmp_path / "imported").exists()
    assert source[0]["picture"] is None
    assert source[0]["caption"].startswith("caption")


@dataclasses.dataclass
class Mine:
    __key__: str
    caption: str
    tags: list[str] = dataclasses.field(default_factory=list)
    level: int = 3


class Other(TypedDict):
    caption: str
    level: NotRequired[int]


def test_registered_types_need_no_trust(folder: Path) -> None:
    assert ps.register_sample_type(Mine) is Mine
    for module in (Mine.__module__, "somewhere.else"):
        write(folder, f"sample_type: {{__module__: {module}, __class__: Mine}}\nfield_map: {{caption: txt}}\n")
        sample = ps.open(folder, split="val")[0]
        assert (sample["tags"], sample["level"]) == ([], 3)
    register_sample_type(Other)
    write(folder, "sample_type: {__module__: x, __class__: Other}\nfield_map: {level: 'json[id]'}\n")
    with pytest.raises(ConfigError, match="no caption"):
        ps.open(folder, split="val")
    write(folder, "sample_type: {__module__: x, __class__: Other}\nfield_map: {caption: txt, level: 'json[id]'}\n")
    assert ps.open(folder, split="val")[0]["level"] == 20
    for wrong in (int, Mine("k", "c"), "Mine"):
        with pytest.raises(ConfigError, match="dataclass"):
            register_sample_type(wrong)  # type: ignore[type-var]


def test_all_types_of_the_original_have_their_fields() -> None:
    fields = {name: (one.required, dict(one.defaults)) for name, one in TYPES.items()}
    assert len(fields) == 12
    assert fields["MultiChoiceVQASample"] == (("image", "context"), {"choices": None, "correct_choice_idx": 0})
    assert fields["OCRSample"][0] == ("image", "text")
    assert list(fields["OCRSample"][1]) == [
        *("block_boxes", "block_classes", "block_text", "lines_boxes", "lines_text"),
        *("words_boxes", "words_text", "chars_boxes", "chars_text"),
    ]
    assert fields["SimilarityInterleavedSample"][0] == ("images", "texts")
    assert list(fields["VQAOCRSample"][1]) == ["answers", "answer_weights", "words_boxes", "words_text"]


@pytest.mark.parametrize("name", [name for name in TYPES if name != "Sample"])
def test_each_type_opens_in_both_forms(folder: Path, name: str) -> None:
    fields = "field_map: {" + ", ".join(f"{field}: txt" for field in TYPES[name].required) + "}\n"
    old = f"__module__: megatron.energon\n__class__: {name.removesuffix('Sample')}Webdataset\n"
    for head in (f"sample_type: {{__module__: megatron.energon, __class__: {name}}}\n", old):
        write(folder, head + fields)
        sample = ps.open(folder, split="val")[0]
        assert {field for field in sample if not field.startswith("__")} == set(TYPES[name].fields)
        assert all(sample[field] == value for field, value in TYPES[name].defaults.items())


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("[1, 2]", FormatError, "not a mapping"),
        ("a: b: c", FormatError, r"d\.yaml"),
        ("", FormatError, "not a mapping"),
        (CAPTIONING, ConfigError, "field_map or a sample_loader"),
        (CAPTIONING + FIELD_MAP + "sample_loader: a.py\n", ConfigError, "either"),
        (CAPTIONING + FIELD_MAP + "part_filter: [jpg]\n", ConfigError, "part_filter"),
        (CAPTIONING + FIELD_MAP + "no_such_key: 1\n", ConfigError, "no_such_key"),
        (CAPTIONING + FIELD_MAP + "subflavors: [a]\n", ConfigError, "subflavors"),
        (CAPTIONING + FIELD_MAP + "subset: {range: [0, 5]}\n", ConfigError, "subset.*inside the split"),
        (CAPTIONING + FIELD_MAP + "subset: {range: [0.5, 0.25]}\n", ConfigError, "subset"),
        (CAPTIONING + FIELD_MAP + "subset: {range: [0.1, 0.2, 0.3]}\n", ConfigError, "subset"),
        (CAPTIONING + FIELD_MAP + "subset: {range: ['0%', '5%']}\n", ConfigError, "subset"),
        (CAPTIONING + FIELD_MAP + "subset: {absolute_range: [true, 5]}\n", ConfigError, "subset"),
        (CAPTIONING + FIELD_MAP + "subset: {absolute_range: [5, 3]}\n", ConfigError, "subset"),
        (CAPTIONING + FIELD_MAP + "subset: {first: 3}\n", ConfigError, "subset"),
        (CAPTIONING + FIELD_MAP + "subset: [0, 5]\n", ConfigError, "subset"),
        (CAPTIONING + "field_map: {image: [jpg]}\n", ConfigError, "image"),
        ("sample_type: CaptioningSample\n" + FIELD_MAP, ConfigError, "sample_type"),
        ("__module__: os\n__class__: system\n", UnsafeData, r"os\.system"),
        ("__module__: os\n__function__: system\n", UnsafeData, r"os\.system"),
        ("__module__: megatron.energon\n__class__: MetadatasetV2\n", UnsafeData, "MetadatasetV2"),
        ("__module__: megatron.energon\n__class__: CrudeWebdataset\n" + FIELD_MAP, ConfigError, "crude"),
        (CAPTIONING + FIELD_MAP + "part_filter: 3\n", ConfigError, "part_filter"),
    ],
)
def test_refusals(text: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        parse_dataset_yaml(load(text, "d.yaml"), "d.yaml")


def test_a_subset_is_no_split_that_can_be_opened_by_itself(folder: Path) -> None:
    write(folder, CAPTIONING + FIELD_MAP + "subset: {range: [0, 0.5]}\n")
    with pytest.raises(Unsupported, match=r"the part of the split to read.*get_train_dataset"):
        ps.open(folder, split="val")
    assert len(ps.open(folder, split="val", raw=True)) > 0


def test_a_field_that_the_type_lacks(folder: Path) -> None:
    write(folder, CAPTIONING + "field_map: {image: jpg, caption: txt, colour: cls}\n")
    with pytest.raises(ConfigError, match=r"unknown colour.*image, caption"):
        ps.open(folder, split="val")


def test_tags_build_nothing(folder: Path) -> None:
    marker = folder / "ran"
    write(folder, CAPTIONING + FIELD_MAP + f"subflavors: !!python/object/apply:os.system ['touch {marker}']\n")
    with pytest.raises((ConfigError, FormatError)):
        ps.open(folder, split="val")
    assert not marker.exists()


def test_old_keys_are_known() -> None:
    text = CAPTIONING + FIELD_MAP + "auto_decode: yes\nvideo_decode: torch\naudio_num_clips: 2\nimage_decode: rgb8\n"
    found = parse_dataset_yaml(load(text, "d"), "d")
    assert found.is_decoded
    assert found.image_decode == "rgb8"
    assert not parse_dataset_yaml(load(CAPTIONING + FIELD_MAP + "auto_decode: no\n", "d"), "d").is_decoded
