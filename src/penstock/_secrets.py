"""Redaction of secrets in URLs as `***`: the user and password before a host, and the values of a query.

Errors, summaries, recipes, side files, logs and output of commands pass through `redact`. A redacted URL opens if the
environment has the secrets: `PENSTOCK_URL_AUTH=user:password@host`, several separated by spaces. They are only sent to
that host.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import logging

T = TypeVar("T")
HIDDEN = "***"
AUTH = "PENSTOCK_URL_AUTH"

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{1,31}://"
_URL = re.compile(rf"({_SCHEME})((?:(?!{_SCHEME})[^\s'\"<>`])+)")
# Here a meaningful name is before the @: a container, or a dataset.
_NO_USERS = ("abfs", "abfss", "wasb", "wasbs", "dss")
_HOST = re.compile(r"[^/?#]*")
_OPEN_PASSWORD = re.compile(r"[^/?#@:\[]*:(?!\d+(?:[/?#]|$))")
_VALUE = re.compile(r"=[^&;#]+")
_BEHIND = ".,:;)]"


def redact(text: str) -> str:
    """Return the text without the secrets of the URLs in it."""
    return _URL.sub(lambda found: found[1] + _shown(found[1][:-3].lower(), found[2]), text) if "://" in text else text


def redacted_repr(kind: type[T]) -> type[T]:
    """Return the class with a `repr` without secrets: for results that users print or log."""
    plain = kind.__repr__

    def shown(self: T) -> str:
        return redact(plain(self))

    kind.__repr__ = shown
    return kind


def logger(name: str = "penstock") -> logging.Logger:
    """Return the logger of that name, which redacts secrets."""
    import logging  # 10 ms, which `penstock --help` doesn't need

    log = logging.getLogger(name)
    log.addFilter(_redact_record)
    return log


def with_auth(url: str) -> str:
    """Return a redacted URL with the user and password for its host in the environment.

    Raises:
        ValueError: the environment has none; the text contains the variable.
    """
    scheme, _, rest = url.partition("://")
    if not rest.startswith(f"{HIDDEN}@"):
        return url
    place = rest[len(HIDDEN) + 1 :]
    host = _HOST.match(place)
    wanted = host[0] if host else ""
    for one in os.environ.get(AUTH, "").split():
        user, _, known = one.rpartition("@")
        if user and known == wanted:
            return f"{scheme}://{user}@{place}"
    raise ValueError(f"Set {AUTH}=user:password@{wanted}, or include them in the URL")


def _redact_record(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if "://" in message:
        record.msg, record.args = redact(message), None
    return True


def _shown(scheme: str, rest: str) -> str:
    stop = len(rest.rstrip(_BEHIND))  # a pattern would try each bracket of a long row of them
    rest, tail = rest[:stop], rest[stop:]
    if scheme not in _NO_USERS:
        host = _HOST.match(rest)
        at = rest.rfind("@", 0, host.end() if host else 0)
        if at < 0 and _OPEN_PASSWORD.match(rest):  # a password may contain slashes
            at = rest.rfind("@")
        if at >= 0:
            rest = f"{HIDDEN}{rest[at:]}"
    place, mark, query = rest.partition("?")
    if mark and "=" not in query and query and scheme.startswith("http"):
        query = HIDDEN
    return place + mark + _VALUE.sub(f"={HIDDEN}", query) + tail
