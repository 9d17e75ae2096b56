"""`bench/gpu.py` where there is no device: its steps run on the processor, with a model that is small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import penstock as ps

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "gpu.py"


def _answer(function: str, **arguments: Any) -> dict[str, float]:
    command = [sys.executable, str(SCRIPT), function, json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_steps_and_a_resume_on_the_processor(tmp_path: Path) -> None:
    path = str(tmp_path / "a.pbin")
    with ps.create(path, format="pbin", token_bytes=2, eos_id=0) as writer:
        for length in (5_000, 3_000):
            writer.write({"tokens": [*np.random.default_rng(0).integers(1, 99, length).tolist(), 0]})
    given = {"kind": "tokens", "path": path, "device": "cpu", "batch": 2, "steps": 2}
    small = {"warm_steps": 1, "width": 8, "layers": 1, "heads": 2, "vocabulary": 100}
    loaded = _answer("step", loads=True, **given, **small)
    assert loaded["steps_per_second"] > 0
    assert loaded["mb_per_second"] > 0
    assert _answer("step", loads=False, **given, **small)["mb_per_second"] == 0
    assert _answer("resumed", **given)["seconds"] > 0
