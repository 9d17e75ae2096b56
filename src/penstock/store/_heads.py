"""Sizes and versions of remote files, requested at most once per file."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping

import msgspec

from penstock._digest import digest
from penstock.errors import Corrupt, Denied, NotFound, Truncated
from penstock.store.base import Head, Store, changed_while_read
from penstock.store.patterns import alternatives

_MOST_BYTES = 1 << 12
_BEFORE_S = 60.0
_CLOCK_S = 5.0


class _Seen(msgspec.Struct, frozen=True):
    """A note with the digest of the URL, the fields of `Head`, and the time by the clock of this host."""

    url: str
    size_bytes: int
    version: str
    modified: str
    seen_s: float


def noted(
    folder: str, url: str, size_bytes: int | None, opened_s: float, *, decides: bool = False
) -> tuple[Head | None, bool]:
    """Return the note about a file, or None, and whether it is valid for a store opened at `opened_s`."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fd = os.open(_path(folder, url), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about, around = os.fstat(fd), os.stat(folder)
            mine = about.st_uid in (0, os.geteuid(), around.st_uid) or not around.st_mode & stat.S_IWOTH
            if not stat.S_ISREG(about.st_mode) or not mine or about.st_mode & stat.S_IWOTH:
                return None, False
            one = msgspec.json.decode(os.read(fd, _MOST_BYTES), type=_Seen)
        finally:
            os.close(fd)
        if one.url == digest(url) and size_bytes in (None, one.size_bytes) and (one.version or one.modified):
            before_s = 0.0 if decides else _BEFORE_S
            is_young = opened_s - before_s <= one.seen_s <= time.time() + _CLOCK_S
            return Head(one.size_bytes, one.version, one.modified), is_young
    return None, False


def note(folder: str, url: str, head: Head) -> None:
    """Save a server's answer as a note, if it has a version and the folder is writable."""
    if not head.identity:
        return
    data = msgspec.json.encode(_Seen(digest(url), head.size_bytes, head.version, head.modified, time.time()))
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(_path(folder, url), flags, 0o644)
        try:
            if os.fstat(fd).st_nlink == 1:
                os.ftruncate(fd, 0)
                os.pwrite(fd, data, 0)
        finally:
            os.close(fd)


def deciding_path(folder: str, url: str) -> str:
    """Return the path of the lock for requesting the first bytes of a file without a note."""
    return _path(folder, url).removesuffix("seen") + "lock"


def drop_lock(folder: str, url: str) -> None:
    """Remove that lock, which its process still holds."""
    with contextlib.suppress(OSError):
        os.unlink(deciding_path(folder, url))


def _path(folder: str, url: str) -> str:
    return os.path.join(folder, f"{digest('seen', url)[:32]}.seen")


_MOST_HEADS = 1 << 17


class Heads:
    """Sizes and versions of the files of a store, as of its opening or later.

    Attributes:
        sizes: path → size recorded in an index.
        guesses: path → rough size of a file that is identified otherwise, such as by an index.

    Args:
        ask: requests size and version of a file.
        folder: returns the folder of the copies, where processes of a host save notes.
        forget: called when the cached sizes and versions are dropped because there are too many.
    """

    __slots__ = (
        "_ask",
        "_asked",
        "_changed",
        "_folder",
        "_forget",
        "_known",
        "_noted",
        "_opened_s",
        "_surveyed",
        "guesses",
        "sizes",
    )

    def __init__(self, ask: Callable[[str], Head], folder: Callable[[], str], forget: Callable[[], object]) -> None:
        self._ask = ask
        self._folder = folder
        self._forget = forget
        self._opened_s = time.time()
        self._known: dict[str, Head] = {}
        self._asked: set[str] = set()
        self._noted: set[str] = set()
        self._changed: set[str] = set()
        self._surveyed: dict[str, list[str]] = {}
        self.sizes: dict[str, int] = {}
        self.guesses: dict[str, int] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._known

    def survey(self, folder: str, found: Mapping[str, Head]) -> None:
        """Keep a listing of all files under a folder."""
        for path, head in found.items():
            if path not in self._changed:
                self._known.setdefault(path, head)
        self._surveyed[folder.rstrip("/")] = sorted(found)

    def lacks(self, path: str) -> bool:
        """Return whether a listing shows that neither a file nor a folder of this name exists."""
        names = self._listing_of(path.rpartition("/")[0])
        if names is None or path in self._changed:
            return False
        place = bisect_left(names, path)
        return names[place : place + 1] != [path] and not self.is_folder(path)

    def is_folder(self, path: str) -> bool | None:
        """Return whether a listing has files under a path, or None without a listing."""
        start = f"{path.rstrip('/')}/"
        names = self._listing_of(start[:-1])
        if names is None or path in self._changed:
            return None
        place = bisect_left(names, start)
        return any(one.startswith(start) for one in names[place : place + 1])

    def is_there(self, path: str, remote: Store) -> bool:
        """Return whether a file or folder exists; web servers, which have no folders, are asked once."""
        if path in self._known or self.is_folder(path):
            return True
        if not remote.lists_nothing:
            return not self.lacks(path) and remote.exists(path)
        with contextlib.suppress(NotFound, Denied):
            return self.head(path).size_bytes >= 0
        return False

    def is_folder_of(self, path: str, remote: Store) -> bool:
        """Return whether a folder exists; on a web server, any path that isn't a file may be one, except `{a,b}`."""
        known = self.is_folder(path)
        if known is not None:
            return known
        if remote.lists_nothing:
            return len(alternatives(path)) == 1 and not self.is_there(path, remote)
        return remote.is_folder(path)

    def _listing_of(self, folder: str) -> list[str] | None:
        """Return all listed files under a folder, from a listing of it or of one of its parents."""
        while folder:
            if folder in self._surveyed:
                return self._surveyed[folder]
            folder = folder.rpartition("/")[0]
        return None

    def head(self, path: str) -> Head:
        found = self._known.get(path)
        if found is None and self.lacks(path):
            raise NotFound("no such file or folder", path=path, hint="Check the URL")
        if found is None:
            found = self._ask(path)
            self.remember(path, found)
        return found

    def size(self, path: str) -> int:
        known = None if path in self._known else self.sizes.get(path)
        return self.head(path).size_bytes if known is None else known

    def version(self, path: str) -> str:
        head = self._known.get(path)
        # Compare both: rewritten bytes may have the same ETag although the files that belong to them differ.
        return "" if head is None or not head.identity else f"{head.size_bytes} {head.version} {head.modified}"

    def remember(self, path: str, head: Head) -> None:
        if len(self._known) >= _MOST_HEADS:
            for known in (self._known, self._asked, self._noted, self.sizes, self.guesses):
                known.clear()
            self._forget()
        self._known[path] = head

    def answered(self, path: str, now: Head) -> None:
        """Keep size and version of an answer, or raise `Corrupt` if they contradict what is known."""
        if path in self._known:
            self.require_same(path, self._known[path], now)
        else:
            self.remember(path, now)

    def forget(self, path: str) -> None:
        """Forget a file that this process changed, including what other processes noted."""
        self._known.pop(path, None)
        self.sizes.pop(path, None)
        self._asked.discard(path)
        self._noted.discard(path)
        self._changed.add(path)

    def seen(self, path: str) -> Head | None:
        """Return size and version as noted by a process of this host, or None without a note."""
        if path in self._changed:
            return None
        size_bytes = self.sizes.get(path)
        found, is_young = noted(self._folder(), path, size_bytes, self._opened_s, decides=not self._is_named(path))
        if found is not None and not is_young:
            found = self._ask(path)
            note(self._folder(), path, found)
        if found is not None:
            self.remember(path, found)
        return found

    def _is_named(self, path: str) -> bool:
        """Return whether an index identifies this file, so that its own version doesn't matter."""
        return path in self.sizes or path in self.guesses

    def note_seen(self, path: str, head: Head) -> None:
        """Note a version for other processes, once; called when the copy exists, so that they don't fetch it too."""
        if path not in self._noted:
            self._noted.add(path)
            if noted(self._folder(), path, head.size_bytes, self._opened_s)[0] is None:
                note(self._folder(), path, head)

    def of_size(self, path: str, size_bytes: int | None) -> Head:
        head = self.head(path)
        if size_bytes is not None and head.size_bytes != size_bytes:
            kind = Truncated if head.size_bytes < size_bytes else Corrupt
            raise kind(
                "the size of the file differs from its index",
                path=path,
                offset_bytes=min(head.size_bytes, size_bytes),
                found=f"{head.size_bytes} bytes",
                expected=f"{size_bytes} bytes",
            )
        return head

    def identified(self, path: str, head: Head) -> Head:
        """Return `head`, requested again if the answer to a range had no version."""
        if not head.identity and path not in self._asked:
            self._asked.add(path)
            return self.require_same(path, head, self._ask(path))
        return head

    def require_same(self, path: str, head: Head, now: Head) -> Head:
        """Return the known size and version, completed by an answer; raise `Corrupt` for another version."""
        if head.contradicts(now):
            found, expected = (f"{one.size_bytes} bytes, version {one.identity or 'unknown'}" for one in (now, head))
            raise changed_while_read(path, found, expected)
        if now.identity and not head.identity:
            self._known[path] = now
            return now
        return head
