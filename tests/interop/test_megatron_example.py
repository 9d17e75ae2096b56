"""`examples/megatron_provider.py` with the real megatron-core: killed, and taken up by twice as many ranks."""

from __future__ import annotations

from pathlib import Path

import peers
from stopped import killed_and_taken_up, require_equal

PYTHON = str(peers.python_of("megatron"))


def torchrun(ranks: int) -> list[str]:
    return [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def test_a_provider_over_tensor_and_data_parallel_ranks(tmp_path: Path) -> None:
    """Two tensor-parallel peers, then two pairs of them."""
    killed, (one, two), whole = killed_and_taken_up(
        torchrun(2), [torchrun(2), torchrun(4)], "megatron_provider.py", tmp_path
    )
    require_equal(killed, one, whole)
    require_equal(killed, two, whole, same_world=False)
