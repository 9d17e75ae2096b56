"""The programs of `examples/` with the real packages: killed, taken up, and the same as if nobody had stopped them."""

from __future__ import annotations

from pathlib import Path

import peers
import pytest
from stopped import killed_and_taken_up, require_equal

PYTHON = str(peers.python_of("frameworks"))


def torchrun(ranks: int) -> list[str]:
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


@pytest.mark.parametrize("example", ["ddp.py", "fsdp2.py", "accelerate_loop.py", "torchtitan_dataloader.py"])
def test_two_ranks_go_on_as_two_and_as_three(tmp_path: Path, example: str) -> None:
    killed, (two, three), whole = killed_and_taken_up(torchrun(2), [torchrun(2), torchrun(3)], example, tmp_path)
    require_equal(killed, two, whole)
    require_equal(killed, three, whole, same_world=False)


def test_the_main_branch_of_torchtitan(tmp_path: Path) -> None:
    stub = peers.SCRIPTS / "stubs" / "torchtitan_main"
    path = {"PYTHONPATH": f"{peers.ROOT / 'src'}:{stub}"}
    example = "torchtitan_dataloader.py"
    killed, (three,), whole = killed_and_taken_up(torchrun(2), [torchrun(3)], example, tmp_path, **path)
    require_equal(killed, three, whole, same_world=False)


@pytest.mark.parametrize("example", ["hf_trainer.py", "lightning_module.py"])
def test_one_process(tmp_path: Path, example: str) -> None:
    killed, (later,), whole = killed_and_taken_up([PYTHON], [[PYTHON]], example, tmp_path)
    require_equal(killed, later, whole)


def test_a_checkpoint_that_was_cut_off(tmp_path: Path) -> None:
    def cut_off(folder: Path) -> None:
        content = next(folder.glob("*.ckpt")).read_bytes()
        (folder / "step=999999.ckpt").write_bytes(content[: len(content) // 2])

    example = "lightning_module.py"
    killed, (later,), whole = killed_and_taken_up([PYTHON], [[PYTHON]], example, tmp_path, change=cut_off)
    require_equal(killed, later, whole)
