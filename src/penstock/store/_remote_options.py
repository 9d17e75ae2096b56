"""How requests to remote stores are made, and what can be set about it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

from penstock._settings import said_by, setting
from penstock.errors import ConfigError

REQUEST_BYTES = 1 << 18
"""What one request is worth: 256 KiB arrive in the time that a request waits for its first byte, with several at once.

So a gap of this size between two ranges is cheaper to read than to leave out.
"""


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Settings of all requests; each field is a setting `PENSTOCK_REMOTE_<FIELD>` too.

    Attributes:
        gap_bytes: ranges that are at most so far apart are read by one request.
        part_bytes: a longer read becomes several requests at once: one connection alone gets 50 to 100 MB/s.
        requests: requests at once, a process.
        tries: of one request, before its failure is an error.
        backoff_s: before the second try; doubled each time up to 10 s, and shortened at random by up to a half.
        timeout_s: without a byte, a try has failed.
        deadline_s: without an answer in all tries, a request has failed; it starts again where the server answers.
        spread_s: the hosts of a job make their first requests one after another within so long, or 10 ms a host where
            that is less; 0: all at once.
    """

    gap_bytes: int = REQUEST_BYTES
    part_bytes: int = 1 << 23
    requests: int = 16
    tries: int = 10
    backoff_s: float = 0.1
    timeout_s: float = 30.0
    deadline_s: float = 120.0
    spread_s: float = 10.0

    @classmethod
    def from_environment(cls) -> RemoteOptions:
        """The options that are set; raises `ConfigError` for what is no number of the right kind."""
        given = {}
        for one in fields(cls):
            name = f"PENSTOCK_REMOTE_{one.name.upper()}"
            text, _ = said_by(name)
            if text is not None:
                given[one.name] = _number(name, text, whole=isinstance(one.default, int))
        return cls(**given)


def whole_number(name: str) -> int | None:
    """The setting of this variable as a whole number; None where it is not set; raises `ConfigError`."""
    text = setting(name)
    return int(_number(name, text, whole=True)) if text else None


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = -1
    least = 0 if name.endswith("GAP_BYTES") or not whole else 1
    if not least <= value <= sys.maxsize:  # also NaN and infinity
        kind = "an integer" if whole else "a number"
        raise ConfigError(f"invalid value for {name}", found=repr(text), expected=f"{kind} of at least {least}")
    return value
