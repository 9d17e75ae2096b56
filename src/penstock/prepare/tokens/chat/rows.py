"""Rows of chat data as conversations: messages, tools, and which messages are trained on.

A message is an object with a `role` and a `content`: text, a list of parts, or null in a message that calls tools.
`tools` next to the messages goes to templates that take it.

Data marks messages in several ways. The keys in `MARKS` are honoured, and never reach the template; any other key that
looks like a mark is an error, since ignoring it would train on the wrong text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

from penstock._naming import nearest
from penstock.prepare.tokens.chat.normalize import normalize_message
from penstock.prepare.tokens.chat.render import ASSISTANT, Conversation, UnusableError
from penstock.prepare.tokens.documents import KINDS, Fault, KeyPath, value_at

MESSAGES = "messages"
TOOLS = "tools"
ROLES = (
    *("system", "developer", "user", "assistant", "tool"),
    *("function", "ipython", "observation", "environment", "document", "tool_call", "tool_response"),
)
"""Who may speak; templates know some of them."""

MARKS = {
    **dict.fromkeys(("weight", "loss_mask", "mask", "train", "trainable", "training"), True),
    "masked": False,
}
"""Keys of a message that mark it → whether 1 means that it is trained on."""

_LOOKS_LIKE_MARK = re.compile("mask|weight|train|loss", re.IGNORECASE)


def conversation_of(row: Any, path: KeyPath, chars: int) -> Conversation:
    """Return the conversation in a row.

    Args:
        row: a JSON value.
        path: the way to its messages.
        chars: length of the row.

    Raises:
        UnusableError: the row holds no conversation, or marks that can't be honoured.
    """
    messages = value_at(row, path)
    if isinstance(messages, Fault):
        raise UnusableError(str(messages))
    if not isinstance(messages, list) or not messages:
        found = "empty" if messages == [] else KINDS[type(messages)]
        raise UnusableError(f"the messages are {found}, not a list of objects with role and content")
    checked: list[dict[str, Any]] = []
    untrained: set[int] = set()
    for index, value in enumerate(cast(list[Any], messages)):
        message, is_trained = _take_marks(index + 1, value)
        checked.append(normalize_message(_checked(index + 1, message)))
        if is_trained is False:
            untrained.add(index)
        elif is_trained and message["role"] != ASSISTANT:
            mark = next(key for key in value if key in MARKS and value[key] is not None)
            raise UnusableError(
                f"message {index + 1} of {message['role']} is marked as trained: {mark!r} is {value[mark]!r}, "
                f"and only messages of the assistant are trained on. Remove the mark"
            )
    return Conversation(checked, _tools(row), chars, frozenset(untrained))


def _take_marks(number: int, message: Any) -> tuple[dict[str, Any], bool | None]:
    """Return a message without its marks, and whether they say that it is trained on; None without any."""
    if not isinstance(message, dict):
        raise UnusableError(f"message {number} is {KINDS[type(message)]}, not an object with role and content")
    whole = cast(dict[str, Any], message)
    _require_no_other_marks(f"message {number}", whole)
    parts = whole.get("content")
    for part in cast(list[Any], parts) if isinstance(parts, list) else ():
        if isinstance(part, dict):
            _require_no_other_marks(f"a part of message {number}", cast(dict[str, Any], part), honoured={})
    trained: dict[str, bool] = {}
    for key in MARKS.keys() & whole.keys():
        value = whole[key]
        if value is None:
            continue
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            raise UnusableError(
                f"message {number}: the mark {key!r} is {json.dumps(value)[:40]}, not 0, 1, true or false"
            )
        trained[key] = bool(value) == MARKS[key]
    if len({*trained.values()}) > 1:
        raise UnusableError(f"message {number}: the marks {' and '.join(sorted(trained))} contradict each other")
    plain = {key: value for key, value in whole.items() if key not in MARKS}
    return plain, next(iter(trained.values()), None)


def _require_no_other_marks(where: str, value: dict[str, Any], honoured: dict[str, bool] = MARKS) -> None:
    """Raise `UnusableError` for a key that looks like a mark and isn't one that is honoured."""
    for key in value:
        if _LOOKS_LIKE_MARK.search(key) and key not in honoured and value[key] is not None:
            raise UnusableError(
                f"{where} has the key {key!r}, which looks like a mark for the loss. Rename or remove it, "
                f"or mark whole messages by one of {', '.join(MARKS)}"
            )


def _checked(number: int, message: dict[str, Any]) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        fault = "has no role" if role is None else f"has a role that is {KINDS[type(role)]}"
        raise UnusableError(f"message {number} {fault}{_keys(message)}")
    if role not in ROLES:
        close = nearest(role, ROLES)
        raise UnusableError(
            f"message {number} has the unknown role {role[:40]!r}"
            + (f", did you mean {close!r}?" if close else f" (known: {', '.join(ROLES[:5])}, …)")
        )
    if not isinstance(content, str | list | None):
        raise UnusableError(f"message {number} has a content that is {KINDS[type(content)]}, not text")
    if content is None and sum(value is not None for value in message.values()) < 2:
        raise UnusableError(f"message {number} has no content{_keys(message)}")
    return message


def _keys(message: dict[str, Any]) -> str:
    return f" (fields: {', '.join(list(message)[:8])})" if message else ""


def _tools(row: Any) -> list[Any] | None:
    """Return the tools of a conversation, which some data holds as JSON text."""
    tools = row.get(TOOLS) if isinstance(row, dict) else None
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise UnusableError("the tools are text, and no JSON") from None
    if tools is None or tools in ("", []):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in cast(Sequence[Any], tools)):
        raise UnusableError("the tools are no list of objects")
    return cast(list[Any], tools)
