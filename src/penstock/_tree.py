"""What `print(source)` and `print(stream)` show: a tree that fits a screen, and reads no data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

MOST_CHILDREN = 16


@runtime_checkable
class SupportsSummary(Protocol):
    """Says in one line what it is, without reading data."""

    def summary(self) -> str:
        """Such as `Shuffle  seed=7 mode=global lanes=1`."""
        ...


def tree(node: Any) -> str:
    """One line for `node`, and below it, indented, one for each of its children."""
    return "\n".join(_lines(node, "", 0))


def line(name: str, params: Mapping[str, Any], fingerprint: str | None = None) -> str:
    """A summary: name, parameters that are not None, and a short fingerprint where one is known already."""
    words = [name, " ".join(f"{key}={_value(value)}" for key, value in params.items() if value is not None)]
    if fingerprint is not None:
        words.append(f"[{fingerprint[:8]}]")
    return "  ".join(word for word in words if word)


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _lines(node: Any, label: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    children: Mapping[str, Any] = node.children() if hasattr(type(node), "children") else {}
    yield f"{indent}{label}{node.summary() if isinstance(node, SupportsSummary) else type(node).__name__}"
    for place, (name, child) in enumerate(children.items()):
        if place == MOST_CHILDREN:
            yield f"{indent}  … and {len(children) - place:,} more"
            return
        yield from _lines(child, f"{name}: ", depth + 1)
