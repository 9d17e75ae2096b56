"""The programs of `examples/` with the real packages: killed, taken up, and the same as if nobody had stopped them."""

from __future__ import annotations

from pathlib import Path

import peers
import pytest
from stopped import killed_and_taken_up, require_equal

PYTHON = str(peers.python_of("frameworks"))


def torchrun(ranks: int) -> list[str]:
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


@pytest.mark.parametrize("example", ["ddp.py", "fsdp2.py"])
@pytest.mark.parametrize("later", [2, 3])
def test_ranks_of_torchrun(tmp_path: Path, example: str, later: int) -> None:
    found = killed_and_taken_up(torchrun(2), torchrun(later), example, tmp_path)
    require_equal(*found, same_world=later == 2)


@pytest.mark.parametrize("later", [2, 3])
def test_accelerate(tmp_path: Path, later: int) -> None:
    found = killed_and_taken_up(torchrun(2), torchrun(later), "accelerate_loop.py", tmp_path)
    require_equal(*found, same_world=later == 2)


@pytest.mark.parametrize("example", ["hf_trainer.py", "lightning_module.py", "torchtitan_dataloader.py"])
def test_one_process(tmp_path: Path, example: str) -> None:
    require_equal(*killed_and_taken_up([PYTHON], [PYTHON], example, tmp_path))
