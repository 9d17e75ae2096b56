"""Messages as a chat template gets them: normalized as `apply_chat_template` of transformers does.

| in the data | what the template gets |
|---|---|
| a null key of a message | no such key |
| a null deeper inside, such as in the arguments of a call | that null |
| `reasoning` or `thinking` | `reasoning_content` and `thinking` too |

In a table all structs of a column have the same fields, so a field that is missing in a row is null there. Such nulls
are dropped at any depth: a null that the data means can't be told from one of the schema.
"""

from __future__ import annotations

from typing import Any, cast

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys for the reasoning of a message; the first one that isn't null counts."""


def normalize_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without its null keys, and with its reasoning under the names that templates know."""
    found = {key: value for key, value in message.items() if value is not None}
    reasoning = next((found[key] for key in _REASONING if key in found), None)
    return found if reasoning is None else {"thinking": reasoning, **found, "reasoning_content": reasoning}


class NullFields:
    """Drops the null fields of structs in rows of a table, and notes which ones.

    Attributes:
        names: fields that were null, such as `messages[].tool_calls[].id`. Null keys of a message itself are not noted:
            transformers drops them as well.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def drop(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row whose structs have no null fields; its columns stay."""
        return {name: self._without(value, name, int(name == "tools")) for name, value in row.items()}

    def _without(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, list):
            return [self._without(item, path + "[]", depth) for item in cast(list[Any], value)]
        if not isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for key, item in cast(dict[str, Any], value).items():
            if item is not None:
                found[key] = self._without(item, f"{path}.{key}", depth + 1) if isinstance(item, dict | list) else item
            elif depth:
                self.names.add(f"{path}.{key}")
        return found
