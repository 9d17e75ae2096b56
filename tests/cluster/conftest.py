"""A Ray cluster of three nodes on this machine, on 127.0.0.1 alone, and an S3 server beside it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NODES = 3


class RayCluster:
    """A head without CPUs, to which the driver is joined, and nodes of one CPU that may be killed."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "node_ip_address": "127.0.0.1", "temp_dir": folder}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._add() for _ in range(NODES)]
        self.killed = 0

    @property
    def address(self) -> str:
        """Of the head."""
        return self._cluster.address

    def replace_a_node(self) -> None:
        """Kill the oldest node with all its workers, in the middle of what they do, and add another one."""
        self._cluster.remove_node(self._nodes.pop(0), allow_graceful=False)
        self.killed += 1
        self._nodes.append(self._add())

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1")


@pytest.fixture(scope="session")
def ray_settings(s3_server: str) -> Iterator[None]:
    """What Ray reads when it is imported, and its nodes hand on to their workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # else 127.0.0.1 becomes the host's own address
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        yield


@pytest.fixture(scope="session")
def ray_cluster(ray_settings: None) -> Iterator[RayCluster]:
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # paths of sockets are short
    known = Path("/tmp/ray/ray_current_cluster")  # Ray's cluster for tests leaves its address there
    was_known = known.exists()
    known.parent.mkdir(exist_ok=True)
    cluster = RayCluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()
        if not was_known:
            known.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # others use it
            known.parent.rmdir()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def bucket_url(s3_server: str) -> str:
    """An empty folder of the S3 server."""
    return "s3://bucket/corpus"


def listening() -> set[str]:
    """Addresses that processes of Ray listen on."""
    lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    words = ("ray", "gcs_server", f"pid={os.getpid()},")
    return {line.split()[3].rpartition(":")[0] for line in lines if any(word in line for word in words)}
