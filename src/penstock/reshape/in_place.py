"""Rows that lie in a file already as the writer of an output would put them there."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.abc import Store
from penstock.reshape.picking import OneRun
from penstock.reshape.rows import AnyRows, TokenRows
from penstock.store.cache import CachedStore
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.store.remote import RemoteStore
from penstock.store.resolve import real_path


@dataclass(frozen=True, slots=True)
class InPlace:
    """Documents that lie in a file as the writer of an output in the same store would put them there.

    Attributes:
        source: number of the source.
        rows: all documents of the source.
        file: where they lie.
        start_bytes: where they begin in it.
        size_bytes: of all of them.
    """

    source: int
    rows: TokenRows
    file: Place
    start_bytes: int
    size_bytes: int


def in_place(source: int, rows: AnyRows, store: Store, token_bytes: int) -> InPlace | None:
    """Return the documents of a source if they lie in one file of `store`, little-endian in this width; else None."""
    if not isinstance(rows, TokenRows) or not isinstance(rows.source, OneRun) or rows.dtype.itemsize != token_bytes:
        return None
    run = rows.source.token_run() if _is_same(rows.place.store, store) else None
    if run is None:
        return None
    file = Place(rows.place.store, real_path(rows.place.store, run.path))
    return InPlace(source, rows, file, run.offset_bytes, run.length_bytes)


def _is_same(one: Store, other: Store) -> bool:
    """Whether a file of one of these stores can be named in the other."""
    if isinstance(one, LocalStore) or isinstance(other, LocalStore):
        return isinstance(one, LocalStore) and isinstance(other, LocalStore)
    first, second = (store.remote if isinstance(store, CachedStore) else store for store in (one, other))
    return isinstance(first, RemoteStore) and isinstance(second, RemoteStore) and first.base == second.base
