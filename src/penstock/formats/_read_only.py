"""`create` and `repair` of formats that are read and never written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from penstock.errors import Unsupported
from penstock.store.base import Store
from penstock.types import Action, Finding, OpenOptions

_INSTEAD = "Samples are written as mds, json-shards, jsonl or webdataset; tokens as pbin or megatron"


class _Named(Protocol):
    name: str


def instead_of(this: object) -> str:
    """Return a sentence about how datasets of a format without a writer are made."""
    return getattr(this, "instead", _INSTEAD)


def refuse_to_create(this: _Named, store: Store, path: str, options: Mapping[str, Any], *, overwrite: bool) -> NoReturn:
    """Raise `Unsupported`, as the `create` of a read-only format."""
    raise Unsupported(f"the format {this.name!r} is read-only", path=path, hint=instead_of(this))


def repair_nothing(
    _this: _Named, store: Store, path: str, options: OpenOptions, findings: Sequence[Finding], *, write: bool
) -> list[Action]:
    """Return no actions, as the `repair` of a format in which nothing can be rebuilt from the rest."""
    return []
