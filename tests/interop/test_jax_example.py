"""`examples/jax_mesh.py` over four devices of the host: killed, taken up, and the same as if nobody had stopped it."""

from __future__ import annotations

from pathlib import Path

import peers
from stopped import killed_and_taken_up, require_equal


def test_a_mesh_of_four_devices(tmp_path: Path) -> None:
    python = [str(peers.python_of("jax"))]
    devices = "--xla_force_host_platform_device_count=4"
    killed, (later,), whole = killed_and_taken_up(
        python, [python], "jax_mesh.py", tmp_path, XLA_FLAGS=devices, JAX_PLATFORMS="cpu"
    )
    require_equal(killed, later, whole)
