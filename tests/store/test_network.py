"""Which file systems are across a network."""

from __future__ import annotations

from pathlib import Path

from penstock.store._files import on_network

MOUNTS = rb"""22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /data rw - nfs4 server:/export rw,vers=4.2
31 30 0:27 / /data/local rw - xfs /dev/sdb rw
32 22 0:28 / /my\040disk rw shared:7 master:1 - fuse.sshfs me@host: rw
33 22 0:29 / /old rw - nfs server:/old rw
34 33 0:30 / /old rw - tmpfs tmpfs rw
35 22 0:31 / /lustre rw - lustre 10.0.0.1@tcp:/fs rw
"""


def test_the_nearest_mount_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_bytes(MOUNTS)
    told = {
        path: on_network(path, str(mounts))
        for path in ("/a", "/data", "/data/x.pbin", "/database/x", "/data/local/x", "/my disk/x", "/old/x", "/lustre/x")
    }
    assert [path for path, found in told.items() if found] == ["/data", "/data/x.pbin", "/my disk/x", "/lustre/x"]


def test_links_are_followed(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    mounts.write_bytes(f"22 1 259:2 / / rw - ext4 d rw\n30 22 0:26 / {real} rw - ceph s rw\n".encode())
    assert on_network(str(tmp_path / "link" / "a"), str(mounts))
    assert not on_network(str(tmp_path / "a"), str(mounts))


def test_no_list_of_mounts(tmp_path: Path) -> None:
    assert not on_network(str(tmp_path), str(tmp_path / "missing"))
