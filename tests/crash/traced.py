"""One case under strace: what the system was asked for, to be held against what the hook noted.

`python traced.py NUMBER FOLDER NOTES OLD` does the work of a case in a folder that is set up, hooked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hook

CHANGING = (
    *("open", "openat", "openat2", "creat", "write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate"),
    *("truncate", "fallocate", "copy_file_range", "sendfile", "splice", "fsync", "fdatasync", "sync_file_range"),
    *("link", "linkat", "symlink", "symlinkat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir"),
    *("mkdirat", "rmdir", "mknod", "mknodat", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown"),
    *("lchown", "fchownat", "utime", "utimes", "utimensat", "futimesat", "setxattr", "fsetxattr", "mmap", "msync"),
)
"""Calls of Linux that change files, names, or what is known of them."""

NAMES = {
    "openat": "open",
    "pwrite64": "pwrite",
    "linkat": "link",
    "unlinkat": "unlink",
    "mkdirat": "mkdir",
    "renameat": "rename",
    "symlinkat": "symlink",
    "fchmodat": "chmod",
    "utimensat": "utime",
    "fallocate": "posix_fallocate",
    "remove": "unlink",
    "replace": "rename",
}
"""What counts as one: of Linux, and of Python."""

TO_SECOND = ("link", "linkat", "symlink", "symlinkat", "rename", "renameat", "renameat2", "copy_file_range")
LIMIT_S = 120


def run(number: int, folder: Path, notes: Path, *, with_old: bool, environment: dict[str, str]) -> None:
    """Do the work of a case under strace; what it says goes to `notes`."""
    traced = [sys.executable, __file__, str(number), str(folder), str(notes), str(int(with_old))]
    ours = ["strace", "-f", "-ff", "-y", "-qq", "-s", "0", "-e", f"trace={','.join('?' + one for one in CHANGING)}"]
    with open(notes / "said", "wb") as said:
        command = [*ours, "-o", str(notes / "trace"), *traced]
        subprocess.run(command, check=True, timeout=LIMIT_S, env=environment, stdout=said, stderr=said)


def seen_by_strace(notes: Path, folder: Path) -> list[str]:
    """`<call> <path>` of each call that changed something below the folder, sorted."""
    found = [one for path in notes.glob("trace.*") for one in _calls(path.read_text(errors="replace"), str(folder))]
    return sorted(found)


def seen_by_hook(notes: Path) -> list[str]:
    """The same, as the hook noted it."""
    return sorted(f"{NAMES.get(call.name, call.name)} {call.path}" for call in hook.calls_in(str(notes)))


def _calls(text: str, folder: str) -> Iterator[str]:
    for line in text.splitlines():
        name, _, rest = line.partition("(")
        given, _, _ = rest.rpartition(") = ")
        if name.startswith(("open", "creat")) and (not re.search("O_CREAT|O_TRUNC", given) or "O_TMPFILE" in given):
            continue
        if name == "mmap" and not ("PROT_WRITE" in given and "MAP_SHARED" in given):
            continue
        paths = re.findall(r'"([^"]*)"|\d+<([^>]*)>', given)
        paths = [quoted or by_fd for quoted, by_fd in paths]
        if not paths:
            continue
        path = paths[1] if name in TO_SECOND and len(paths) > 1 else paths[-1] if name.endswith("at") else paths[0]
        if path.startswith(folder + "/"):
            removes = name == "unlinkat" and "AT_REMOVEDIR" in given
            plain = name == "renameat2" and "RENAME_EXCHANGE" not in given
            yield f"{'rmdir' if removes else 'rename' if plain else NAMES.get(name, name)} {path}"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from cases import CASES

    hook.install(hook.Plan(sys.argv[2], sys.argv[3], noted=True))
    CASES[int(sys.argv[1])].work(Path(sys.argv[2]), bool(int(sys.argv[4])))
    sys.stdout.flush()
    os._exit(0)
