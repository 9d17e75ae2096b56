"""A dataset is where its path led when it was opened or created, whatever the working directory is later."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.smoke.made import LINES, MADE

import penstock as ps
from penstock.errors import Excluded, FormatError, NotFound
from penstock.formats import BUILT_IN, get_format
from penstock.load.torch import torch_loader

WRITTEN = [name for name in BUILT_IN if get_format(name).traits.write]
READER = """
import pickle, sys
from pathlib import Path
for file in sorted(Path(sys.argv[1]).glob("*.source")):
    source = pickle.loads(file.read_bytes())
    file.with_suffix(".samples").write_bytes(pickle.dumps([source[at] for at in range(len(source))]))
"""


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in sample.items()}


def assert_holds(found: Iterable[dict[str, Any]], samples: Sequence[dict[str, Any]]) -> None:
    """Check the fields that were written; a format may add its own."""
    for sample, written in zip(found, samples, strict=True):
        assert {key: plain(sample)[key] for key in written} == plain(written)


def read(source: Any) -> list[dict[str, Any]]:
    return [source[at] for at in range(len(source))]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; `elsewhere` is next to it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def other_data(here: Path) -> Path:
    """A directory with files of the same relative names and sizes, and other bytes."""
    elsewhere = here.parent / "elsewhere"
    shutil.copytree(here, elsewhere, dirs_exist_ok=True)
    for file in elsewhere.rglob("*"):
        if file.is_file():
            file.write_bytes(bytes(255 - byte for byte in file.read_bytes()))
    return elsewhere


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_relative_path_is_resolved_once(name: str, here: Path) -> None:
    made = MADE[name](here)
    relative = str(made.path.relative_to(here))
    sources = [ps.open(path, format=name, **made.options) for path in (relative, f"../here/{relative}")]
    sources.append(pickle.loads(pickle.dumps(sources[0])))
    pickled, described = pickle.dumps(sources[0]), ps.open_recipe(sources[0].recipe())
    os.chdir(other_data(here))
    sources += [pickle.loads(pickled), described, ps.open_recipe(sources[0].recipe())]
    for source in sources:
        assert_holds(read(source)[: len(made.samples)], made.samples)
        assert source.recipe()["path"] == str(made.path)
        assert source.fingerprint == sources[0].fingerprint


def test_in_another_process(here: Path) -> None:
    expected: dict[str, Any] = {}
    for name in BUILT_IN:
        (here / name).mkdir()
        made = MADE[name](here / name)
        source = ps.open(str(made.path.relative_to(here)), format=name, **made.options)
        (here.parent / f"{name}.source").write_bytes(pickle.dumps(source))
        expected[name] = made.samples
    subprocess.run([sys.executable, "-c", READER, str(here.parent)], cwd=other_data(here), check=True, timeout=100)
    for name, samples in expected.items():
        found = pickle.loads((here.parent / f"{name}.samples").read_bytes())
        assert_holds(found[: len(samples)], samples)


@pytest.mark.parametrize("name", WRITTEN)
def test_writers_commit_where_they_were_created(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, create = here.parent / "elsewhere", ps.create

    def create_and_leave(path: Path, **options: Any) -> Any:
        writer = create(path, **options)
        os.chdir(elsewhere)
        return writer

    monkeypatch.setattr(ps, "create", create_and_leave)
    made = MADE[name](Path())
    assert list(elsewhere.iterdir()) == []
    assert_holds(read(ps.open(here / made.path, format=name, **made.options)), made.samples)


def test_in_workers_of_a_loader(here: Path) -> None:
    pytest.importorskip("torch")
    made = MADE["mds"](here)
    loader = torch_loader(ps.Sequential(ps.open("a")), len(made.samples), workers=2, rank=0, world=1)
    os.chdir(other_data(here))
    with loader:
        batch = next(iter(loader))
    assert batch["n"].tolist() == [sample["n"] for sample in made.samples]
    assert list(batch["text"]) == [sample["text"] for sample in made.samples]


def test_lists_and_patterns(here: Path) -> None:
    for name in ("b", "a"):
        (here / f"{name}[1]{{x,y}}").mkdir()
    inner = here / "a[1]{x,y}"
    os.chdir(inner)
    for part, lines in (("1", LINES[:2]), ("2", LINES[2:])):
        with ps.create(f"{part}.jsonl", format="jsonl") as writer:
            for line in lines:
                writer.write(line)
    paths: list[Any] = ["*.jsonl", "{1,2}.jsonl", "./[12].jsonl", ".", f"{{{here}/a*/1.jsonl,2.jsonl}}"]
    paths += [["1.jsonl", "2.jsonl"], ["1.jsonl", inner / "2.jsonl"]]
    sources = [ps.open(path) for path in paths]
    os.chdir(here.parent / "elsewhere")
    for path, source in zip(paths, sources, strict=True):
        assert read(source) == LINES, path


def test_messages_name_the_path_as_given(here: Path) -> None:
    with pytest.raises(NotFound, match=r"^sub/a\.pbin: no such file"):
        ps.open("sub/a.pbin")
    with pytest.raises(NotFound, match=rf"^{here}/b\.pbin: no such file"):
        ps.open(here / "b.pbin")
    made = MADE["jsonl"](here)
    source = ps.open("../here/a.jsonl")
    made.path.write_bytes(made.path.read_bytes().replace(b"{", b"["))
    with pytest.raises(FormatError, match=r"^\.\./here/a\.jsonl: "):
        source[0]
    os.chdir("/")
    with pytest.raises(FormatError, match=rf"^{made.path}: "):  # the path as given would be another file now
        source[0]


def test_a_working_directory_that_was_removed(here: Path) -> None:
    here.rmdir()
    with pytest.raises(NotFound, match=r"a\.pbin: a relative path, but the working directory was deleted"):
        ps.open("a.pbin")
    with pytest.raises(NotFound, match="the working directory was deleted"):
        ps.create("a.pbin", format="pbin", token_bytes=2, eos_id=0)


def test_recipes(here: Path) -> None:
    """Paths in a file are relative to the file, those in a dict to the working directory."""
    (here / "below").mkdir()
    with ps.create("below/a.jsonl", format="jsonl") as writer:
        for line in LINES:
            writer.write(line)
    (here / "below" / "recipe.json").write_text('{"source": {"path": "a.jsonl"}}')
    of_file, of_dict = ps.open_recipe("below/recipe.json"), ps.open_recipe({"source": {"path": "below/a.jsonl"}})
    os.chdir(here.parent / "elsewhere")
    for source in (of_file, of_dict):
        assert read(source) == LINES
        assert source.recipe()["path"] == str(here / "below" / "a.jsonl")
    assert of_file.fingerprint == of_dict.fingerprint


def test_exclude_lists(here: Path) -> None:
    MADE["jsonl"](here)
    ps.exclude("a.jsonl", indices=[1], reason="asked for")
    (here / "a.jsonl.penstock.exclude.jsonl").rename(here / "list.jsonl")
    source = ps.open("a.jsonl", excludes="list.jsonl")
    os.chdir(other_data(here))
    for one in (source, pickle.loads(pickle.dumps(source)), ps.open_recipe(source.recipe())):
        with pytest.raises(Excluded):
            one[1]
        assert [one[at] for at in (0, 2, 3)] == [LINES[at] for at in (0, 2, 3)]
