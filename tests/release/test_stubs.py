"""Stubs in the wheel: type checkers find the modules that `penstock.compat` makes from its table."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stubs import CustomBuildHook, stubs

ROOT = Path(__file__).parent.parent.parent
STUBS = stubs(ROOT)


@pytest.mark.parametrize("path", STUBS)
def test_a_stub_names_what_the_module_has(path: str) -> None:
    short = path.removeprefix("src/penstock/compat/").removesuffix(".pyi").removesuffix("/__init__").replace("/", ".")
    if short.startswith("streaming.base.converters"):
        assert STUBS[path].endswith(".spark import *\n")
        return
    module: Any = importlib.import_module(f"penstock.compat.{short}")
    made: dict[str, Any] = {}
    exec(STUBS[path], made)
    names = {name for name in made if not name.startswith("__")}
    assert {name for name in dir(module) if not name.startswith("_")} <= names | {*vars(module)}
    assert all(getattr(module, name) is made[name] for name in names)
    assert not (ROOT / path).exists()
    assert not (ROOT / path).with_suffix(".py").exists()


def test_the_build_includes_them() -> None:
    class Hook(CustomBuildHook):
        root = str(ROOT)

    hook: Any = Hook.__new__(Hook)
    for version, expected in (("standard", {path.removeprefix("src/") for path in STUBS}), ("editable", set[str]())):
        data: dict[str, Any] = {"force_include": {}}
        hook.initialize(version, data)
        assert {*data["force_include"].values()} == expected
        assert all(Path(one).read_text() == STUBS[f"src/{to}"] for one, to in data["force_include"].items())
        hook.finalize(version, data, "")
        assert not any(Path(one).exists() for one in data["force_include"])


def test_a_type_checker_reads_them(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "penstock", tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in STUBS.items():
        target = tmp_path / path.removeprefix("src/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (tmp_path / "program.py").write_text(
        "from penstock.compat.energon.flavors.ocr import OCRSample\n"
        "from penstock.compat.streaming.base.format.mds.encodings import Encoding\n"
        "import penstock.compat.modalities.dataloader.dataset as data\n"
        "reveal_type(OCRSample)\nreveal_type(Encoding)\nreveal_type(data.MemMapDataset)\n"
    )
    pyright = Path(sys.executable).with_name("pyright")
    done = subprocess.run([pyright, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    for name in ("OCRSample", "Encoding", "MemMapDataset"):
        assert f'is "type[{name}]"' in done.stdout
