"""What stands at a local path. One that can't be looked at is an error, where `os.path` says that nothing is there."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable


def status_of(ask: Callable[[str], os.stat_result], path: str) -> os.stat_result | None:
    """What `ask`, a `stat`, says of a path; None where nothing is, or can be, of this name. Else its error."""
    try:
        return ask(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return None
        raise


def is_there(path: str) -> bool:
    """Whether something has this name, if only a link that leads nowhere."""
    return status_of(os.lstat, path) is not None


def is_link(path: str) -> bool:
    """Whether a symbolic link has this name."""
    return (found := status_of(os.lstat, path)) is not None and stat.S_ISLNK(found.st_mode)


def leads_somewhere(path: str) -> bool:
    """Whether something is there when links are followed."""
    return status_of(os.stat, path) is not None


def is_folder(path: str) -> bool:
    """Whether a folder is there, links followed."""
    return (found := status_of(os.stat, path)) is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: str) -> bool:
    """Whether a regular file is there, links followed."""
    return (found := status_of(os.stat, path)) is not None and stat.S_ISREG(found.st_mode)
