"""Programs written for Megatron-Energon, run on it and, with another import, here: the same samples."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import peers
import pytest

import penstock as ps

PROGRAMS = Path(__file__).parent / "programs"
GOLDEN = Path(__file__).parent.parent / "golden"


def texts(folder: Path) -> Path:
    rng = random.Random(os.environ.get("PENSTOCK_INTEROP_SEED", "0"))
    path = folder / "texts.jsonl"
    rows = [{"text": "".join(rng.choices("abc déf", k=rng.randrange(1, 30)))} for _ in range(47)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ps.index(path, flavor="energon")
    return path


def questions(folder: Path) -> Path:
    hidden = shutil.ignore_patterns(".nv-meta", "*.idx", ".penstock")
    path = shutil.copytree(GOLDEN / "energon" / "captioning", folder / "vqa", ignore=hidden)
    ps.prepare(path, split_ratio=[1, 0, 0])
    (path / ".nv-meta" / "dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: VQASample}\n"
        "field_map: {image: jpg, context: txt, answers: 'json[caption]'}\n"
    )
    return path


def crude(folder: Path) -> Path:
    shutil.copytree(GOLDEN / "energon-loading" / "data", folder / "data")
    return folder / "data" / "mds" / "aux_mixed.yaml"


@pytest.mark.parametrize(("name", "data"), [("vqa", questions), ("packing", texts), ("cookers", crude)])
def test_a_program(name: str, data: Any, tmp_path: Path) -> None:
    program = PROGRAMS / f"energon_{name}.py"
    given = {"path": str(data(tmp_path))}
    theirs = peers.run_script("energon", program, given)
    ours = tmp_path / program.name
    text = program.read_text()
    assert text.count("megatron.energon") == 1
    ours.write_text(text.replace("megatron.energon", "penstock.compat.energon"))
    command = [sys.executable, str(ours), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == theirs
    assert theirs["resumed"] is True
