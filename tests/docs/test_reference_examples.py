"""Every public name has an example in its docstring, and the examples run.

An example is the `Examples:` section of a docstring, in doctest form. It runs in a directory of its own that contains
the files of `example_files`.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import inspect
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.codec.films import film

import penstock as ps
from penstock.errors import MissingExtra

ROOT = Path(__file__).parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

EXEMPT_MODULES = {
    "penstock.load.jax": "needs the jax package, which the tests don't install",
}
"""Modules whose names need no example, with the reason."""

DOCUMENTS = [
    {"id": "a1", "lang": "en", "text": "A penstock is the pipe that feeds a turbine."},
    {"id": "a2", "lang": "en", "text": "Water enters at the top and leaves at the bottom."},
    {"id": "a3", "lang": "de", "text": "Ein Wehr staut den Fluss."},
    {"id": "a4", "lang": "en", "text": "The gate controls the flow."},
    {"id": "a5", "lang": "de", "text": "Das Tor regelt den Durchfluss."},
    {"id": "a6", "lang": "en", "text": "Open the gate slowly."},
]


def reference_module() -> Any:
    """`docs/site/reference.py`, which lists the modules that have a page in the reference."""
    spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "docs" / "site" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["reference_pages"] = made
    spec.loader.exec_module(made)
    return made


def public_names() -> dict[str, Any]:
    """`module.name` → class or function, each under the first module that has it."""
    reference = reference_module()
    names: dict[str, Any] = {}
    seen: set[str] = set()
    for module in (reference.FACADE, *reference.MODULES):
        if module in EXEMPT_MODULES:
            continue
        for one in reference.names_of(module, []):
            if one.made_at not in seen:
                seen.add(one.made_at)
                with contextlib.suppress(MissingExtra):
                    names[f"{module}.{one.name}"] = getattr(importlib.import_module(module), one.name)
    return names


NAMES = public_names()


def examples_of(name: str, value: Any) -> doctest.DocTest:
    """The examples of a docstring; with none if it has no section `Examples:`."""
    text = inspect.cleandoc(value.__doc__ or "")
    head, section, examples = text.partition("\nExamples:\n")
    line = head.count("\n") + 2
    return doctest.DocTestParser().get_doctest(examples if section else "", {}, name, name, line)


def write_tokens(path: Path, num_documents: int, first: int) -> None:
    """Document i has i + 5 tokens: `first + 100 * i`, that + 1, …, and the EOS id 0."""
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        for number in range(num_documents):
            start = first + 100 * number
            writer.write({"tokens": np.array([*range(start, start + number + 4), 0], np.uint16)})


def write_pictures(path: Path, num_samples: int) -> None:
    """Samples `000`, `001`, … of a picture of 8 × 6 pixels and a caption, two per shard."""
    from PIL import Image

    sample_type = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    dataset = {"sample_type": sample_type, "field_map": {"image": "png", "caption": "txt"}}
    with ps.create(path, format="webdataset", maxcount=2, dataset=dataset) as writer:
        for number in range(num_samples):
            png = io.BytesIO()
            Image.new("RGB", (8, 6), (40 * number, 0, 0)).save(png, "PNG")
            caption = f"picture {number}".encode()
            writer.write({"__key__": f"{number:03}", "png": png.getvalue(), "txt": caption})


def write_films(path: Path, num_samples: int) -> None:
    """Samples `000`, `001`, … of a film of 6 frames of 32 × 24 pixels and a question."""
    sample_type = {"__module__": "megatron.energon", "__class__": "VidQASample"}
    dataset = {"sample_type": sample_type, "field_map": {"video": "mp4", "context": "txt"}}
    with ps.create(path, format="webdataset", dataset=dataset) as writer:
        for number in range(num_samples):
            question = f"question {number}".encode()
            writer.write({"__key__": f"{number:03}", "mp4": film(), "txt": question})


@pytest.fixture(scope="module")
def example_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples may use: small, and the same each time."""
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("examples")
    lines = [json.dumps(document) + "\n" for document in DOCUMENTS]
    (folder / "docs.jsonl").write_text("".join(lines))
    tokenizer = ByteLevelBPETokenizer()
    texts = [document["text"] for document in DOCUMENTS]
    tokenizer.train_from_iterator(texts, vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_tokens(folder / "corpus.pbin", num_documents=6, first=101)
    write_tokens(folder / "code.pbin", num_documents=4, first=1101)
    with ps.create(folder / "chat-mds", format="mds", columns={"id": "int", "text": "str"}, size_limit=256) as writer:
        for number in range(12):
            writer.write({"id": number, "text": f"conversation {number}"})
    write_pictures(folder / "pictures", 6)
    write_films(folder / "films", 2)
    shutil.copytree(folder / "pictures", folder / "tars", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    write_recipes(folder)
    return folder


def write_recipes(folder: Path) -> None:
    """A recipe of this package, and a metadataset of Energon's."""
    corpora = {"text": ps.open(folder / "corpus.pbin"), "code": ps.open(folder / "code.pbin")}
    windows = {name: ps.Chunk(8, labels="shift")(source) for name, source in corpora.items()}
    blend = ps.Blend(windows, {"text": 0.75, "code": 0.25}, seed=1)
    recipe = json.dumps(blend.recipe()).replace(f"{folder}/", "")
    (folder / "recipe.json").write_text(recipe)
    (folder / "metadataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\n"
        "splits:\n  train:\n    blend:\n      - {weight: 1, path: pictures}\n"
        "  val:\n    path: pictures\n    split_part: train\n"
    )


@pytest.mark.parametrize("name", sorted(NAMES))
def test_example(name: str, example_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = examples_of(name, NAMES[name])
    assert test.examples, f"{name} has no section `Examples:` with lines that begin with >>>"
    folder = tmp_path / "files"
    shutil.copytree(example_files, folder)
    monkeypatch.chdir(folder)
    failures = run(test)
    assert not failures, failures


def run(test: doctest.DocTest) -> str:
    """What was wrong when the examples ran; empty if nothing was."""
    said: list[str] = []
    write: Callable[[str], object] = said.append
    failed = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=write).failed
    return "".join(said) if failed else ""


def test_the_reference_names_the_files(example_files: Path) -> None:
    named = set(re.findall(r"^\| `([^|]*)` \|", reference_module().INTRODUCTION, re.M))
    assert {name for names in named for name in names.split("`, `")} == {
        path.name for path in example_files.iterdir() if path.suffix != ".penstock"
    }


def test_an_example_that_is_wrong() -> None:
    def wrong() -> None:
        """Return nothing.

        Examples:
            >>> 1 + 1
            3
        """

    assert "Expected:\n    3" in run(examples_of("wrong", wrong))
