"""Whether the fields that a condition names are there: a misspelt one would keep all samples, or none, in silence."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from penstock._naming import nearest
from penstock.errors import ConfigError
from penstock.store.place import Place

FieldPath: TypeAlias = tuple[str, ...]
"""Keys that lead to a field: `meta.source` is `("meta", "source")`."""

_SHOWN = 8
_LOOKED_AT = 256  # rows over the whole dataset, before all of them are


def names_in(expression: str) -> set[FieldPath]:
    """The fields that an expression names, each as far as its keys are written out."""
    return set(_names_in(ast.parse(expression.strip(), mode="eval").body))


def _names_in(node: ast.AST) -> Iterator[FieldPath]:
    path = _path_of(node)
    if path:
        yield path
        return
    for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        yield from _names_in(child)


def require_fields(
    paths: Collection[FieldPath],
    fields_at: Callable[[int], Mapping[str, Any]],
    num_rows: int,
    place: Place,
    *,
    columns: Collection[str] | None = None,
) -> None:
    """Refuse a field that no row has.

    Some rows over the whole dataset are looked at, and, while a field is still missing, all of them in their order.

    Args:
        paths: fields that are asked for.
        fields_at: index of a row → its fields.
        num_rows: of the dataset; nothing is refused where it has none.
        place: the dataset, for the error.
        columns: fields that all rows have and no others, where that is known: nothing is read for one that is missing.

    Raises:
        ConfigError: it names the field, and the nearest of those that are there.
    """
    missing, seen = set(paths), set(columns or ())
    if columns is not None and not {one[0] for one in missing} <= seen:
        raise _no_field({one for one in missing if one[0] not in seen}, seen, place)
    for row in _rows(num_rows):
        if not missing:
            return
        fields = fields_at(row)
        missing = {one for one in missing if not _has(fields, one)}
        if len(seen) < _LOOKED_AT:
            seen.update(_paths_of(fields))
    if missing and num_rows:
        raise _no_field(missing, seen, place)


def _no_field(missing: Collection[FieldPath], seen: Collection[str], place: Place) -> ConfigError:
    name = ".".join(min(missing))
    close = nearest(name, seen)
    known = sorted(seen, key=lambda one: (one.count("."), one))[:_SHOWN]
    return ConfigError(
        "no sample has this field",
        path=place.path,
        found=repr(name),
        expected=f"one of {', '.join(known)}" if known else None,
        hint=f"Did you mean {close!r}?"
        if close
        else None
        if "." in name
        else "Put text in quotes, and write fields without quotes",
    )


def _rows(num_rows: int) -> Iterator[int]:
    if num_rows > _LOOKED_AT:
        yield from np.linspace(0, num_rows - 1, _LOOKED_AT, dtype=np.int64).tolist()
    yield from range(num_rows)


def _path_of(node: ast.AST) -> FieldPath:
    match node:
        case ast.Name():
            return (node.id,)
        case ast.Attribute():
            inside, key = _path_of(node.value), node.attr
        case ast.Subscript(slice=ast.Constant(value=str() as key)):
            inside = _path_of(node.value)
        case _:
            return ()
    return (*inside, key) if inside else ()


def _has(fields: Any, path: FieldPath) -> bool:
    for key in path:
        if not isinstance(fields, Mapping) or key not in fields:
            return False
        fields = fields[key]
    return True


def _paths_of(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{key}" for key in value)
