"""Programs written for Megatron-Energon, run on it and, with another import, here: the same samples."""

from __future__ import annotations

import json
import os
import random
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peers
import pytest
from tests.internals import join_states

import penstock as ps

PROGRAMS = Path(__file__).parent / "programs"
GOLDEN = Path(__file__).parent.parent / "golden"
BATCH = 4


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


def moved(name: str, folder: Path) -> Path:
    """The program with its one line changed."""
    text = (PROGRAMS / f"energon_{name}.py").read_text()
    assert text.count("megatron.energon") == 1
    ours = folder / f"energon_{name}.py"
    ours.write_text(text.replace("megatron.energon", "penstock.compat.energon"))
    return ours


@pytest.mark.parametrize(("name", "data"), [("vqa", questions), ("packing", texts), ("cookers", crude)])
def test_a_program(name: str, data: Any, tmp_path: Path) -> None:
    given = {"path": str(data(tmp_path))}
    theirs = peers.run_script("energon", PROGRAMS / f"energon_{name}.py", given)
    ours = moved(name, tmp_path)
    command = [sys.executable, str(ours), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == theirs
    assert theirs["resumed"] is True


def test_indexes_of_batches_and_samples(tmp_path: Path) -> None:
    """In every function of a task encoder, whatever it makes of samples, they are as in the original."""
    given = {"path": str(texts(tmp_path))}
    theirs = peers.run_script("energon", PROGRAMS / "energon_indexes.py", given)
    ours = json.loads(json.dumps(runpy.run_path(str(moved("indexes", tmp_path)))["main"](**given)))
    assert sorted(ours) == sorted(theirs)
    for name, batches in theirs.items():
        assert ours[name] == batches, name


@pytest.mark.parametrize("worlds", [(2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize(
    ("name", "data", "more"),
    [("vqa", questions, {"repeat": True}), ("packing", texts, {"lanes": 4}), ("cookers", crude, {})],
)
def test_a_program_goes_on_on_another_world_size(
    name: str, data: Any, more: dict[str, Any], worlds: tuple[int, int], tmp_path: Path
) -> None:
    """Ours alone: a state of the original fits as many workers as saved it."""
    path = str(data(tmp_path))
    program = runpy.run_path(str(moved(name, tmp_path)))
    before, after = ([program["training"](path, rank, n, BATCH // n, **more) for rank in range(n)] for n in worlds)
    read = batches(program["rows"], before, 3)
    state = json.loads(json.dumps(join_states([one.save_state_rank() for one in before])))
    for one in after:
        one.restore_state_rank(state)
    read += batches(program["rows"], after, 5)
    alone = program["training"](path, batch_size=BATCH, **more)
    assert read == batches(program["rows"], [alone], 8)


def batches(rows: Any, ranks: Sequence[Any], steps: int) -> list[list[Any]]:
    """The rows of each step of all ranks, sorted."""
    walks = [iter(one) for one in ranks]
    return [sorted(row for walk in walks for row in rows([next(walk)])) for _ in range(steps)]
