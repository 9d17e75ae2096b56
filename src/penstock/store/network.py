"""Which paths of this machine lie across a network."""

from __future__ import annotations

import contextlib
import os

_SYSTEMS = frozenset(("9p", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"))


def on_network(path: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether `path` lies on a network file system: there a failed read of a mapping kills the process.

    False where the system has no list of `mounts`.
    """
    place = os.path.realpath(path)
    best = ("", "")
    with contextlib.suppress(OSError), open(mounts, "rb") as lines:
        for line in lines:
            left, _, right = line.partition(b" - ")
            mount = os.fsdecode(left.split()[4].replace(rb"\040", b" ")).rstrip("/")
            if len(mount) >= len(best[0]) and (place + "/").startswith(mount + "/"):
                best = (mount, right.split()[0].decode())
    return best[1] in _SYSTEMS or best[1].startswith("fuse.")
