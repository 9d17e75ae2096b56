"""Lines of JSON → conversations as texts, with what of each is generated; a line that is none is a fault of its own.

A message is an object with a `role` and a `content`: a text, a list of parts, or null where it calls tools. `tools`
beside the messages goes to templates that take it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np

from penstock._limits import require_memory_for
from penstock._naming import nearest
from penstock.errors import PrepareError
from penstock.formats.jsonl.scan import believable, maybe_deep
from penstock.prepare.tokens.chat.render import Conversation, Spans, StoppedError, UnusableError, load_renderer
from penstock.prepare.tokens.chat.template import ChatTemplate
from penstock.prepare.tokens.documents import (
    KINDS,
    Fault,
    KeyPath,
    Texts,
    encode_text,
    json_fault,
    read_lines,
    value_at,
)

MESSAGES = "messages"
TOOLS = "tools"
ROLES = (
    *("system", "developer", "user", "assistant", "tool"),
    *("function", "ipython", "observation", "environment", "document", "tool_call", "tool_response"),
)
"""Who may speak; templates know some of them."""

_STOPPED_FIRST, _STOPPED_SHARE = 16, 100
"""So many conversations at which a template was stopped by force are left out, or one of so many: each is slow."""


class ChatReader:
    """Blocks of lines → the texts of their conversations.

    Memory: a few times the longest line, and what its template makes of it.

    Args:
        path: the way to the messages of a line.
        chat: the template.
        stop_at_fault: of a block, nothing behind its first fault is asked for: a template that ends by force does so
            once.
    """

    def __init__(self, path: KeyPath, chat: ChatTemplate, *, stop_at_fault: bool = False) -> None:
        self._path = path
        self._chat = chat
        self._stop_at_fault = stop_at_fault
        self._asked = self._stopped = 0
        self._renderer = load_renderer(chat)
        self._controls = re.compile("|".join(map(re.escape, chat.controls))) if chat.controls else None

    def read(self, block: bytes) -> Texts:
        """Texts of a run of whole lines.

        Raises:
            PrepareError: the template had to be stopped at more than 1 % of the conversations, and 16.
        """
        spans: list[Spans] = []

        ended = False

        def text_of(line: bytes) -> bytes | str | None:
            nonlocal ended
            if ended:
                return None
            try:
                conversation = self._conversation(line)
                self._asked += 1
                text, generated = self._renderer.render(conversation)
                found = encode_text(text, "what the chat template makes of it")
            except StoppedError as error:
                self._count_stopped(str(error))
                found, generated = str(error), []
            except UnusableError as error:
                found, generated = str(error), []
            if isinstance(found, bytes):
                spans.append(generated)
            else:
                ended = self._stop_at_fault
            return found

        return replace(read_lines(block, text_of), spans=spans)

    def _count_stopped(self, why: str) -> None:
        self._stopped += 1
        if self._stopped > max(_STOPPED_FIRST, self._asked // _STOPPED_SHARE):
            raise PrepareError(
                f"the chat template had to be stopped at {self._stopped} of {self._asked} conversations",
                path=self._chat.path, found=why, expected=f"at most {_STOPPED_FIRST}, or 1 %", hint="Mend the template",
            )  # fmt: skip

    def _conversation(self, line: bytes) -> Conversation:
        """What a line holds; raises `UnusableError`."""
        value = _json(line)
        messages = value_at(value, self._path)
        if isinstance(messages, Fault):
            raise UnusableError(str(messages))
        if not isinstance(messages, list) or not messages:
            found = "empty" if messages == [] else KINDS[type(messages)]
            raise UnusableError(f"the messages are {found}, not a list of objects with role and content")
        checked = [_message(number, one) for number, one in enumerate(cast(list[Any], messages), 1)]
        tools = _tools(value)
        for number, one in enumerate(checked, 1):
            self._require_no_control(f"message {number}", one)
        self._require_no_control(TOOLS, tools)
        return Conversation(checked, tools, len(line))

    def _require_no_control(self, what: str, value: Any) -> None:
        """That no text in a value would be a control token: whoever wrote it could end his turn, and begin another."""
        if self._controls is None:
            return
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                found = self._controls.search(one)
                if found is not None:
                    raise UnusableError(
                        f"{what} holds the control token {found[0]!r} as text: take it out, or --keep-control-tokens"
                    )
            elif isinstance(one, dict):
                waiting += [*one, *one.values()]
            elif isinstance(one, list):
                waiting += one


def _json(line: bytes) -> Any:
    if believable(line, [line]) and not maybe_deep([line], np.array([len(line)])):
        try:
            require_memory_for(line)
            return msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    fault = json_fault(line)
    if fault is not None:
        raise UnusableError(fault)
    return json.loads(line)


def _message(number: int, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise UnusableError(f"message {number} is {KINDS[type(message)]}, not an object with role and content")
    found = cast(dict[str, Any], message)
    role, content = found.get("role"), found.get("content")
    if not isinstance(role, str):
        told = "has no role" if role is None else f"has a role that is {KINDS[type(role)]}"
        raise UnusableError(f"message {number} {told}{_keys(found)}")
    if role not in ROLES:
        close = nearest(role, ROLES)
        raise UnusableError(
            f"message {number} has the unknown role {role[:40]!r}"
            + (f", did you mean {close!r}?" if close else f" (known: {', '.join(ROLES[:5])}, …)")
        )
    if not isinstance(content, str | list | None):
        raise UnusableError(f"message {number} has a content that is {KINDS[type(content)]}, not text")
    if content is None and len(found) < 2 + ("content" in found):
        raise UnusableError(f"message {number} has no content{_keys(found)}")
    return found


def _keys(message: dict[str, Any]) -> str:
    return f" (fields: {', '.join(list(message)[:8])})" if message else ""


def _tools(value: Any) -> list[Any] | None:
    """The tools of a conversation; of a text, which some data hold instead, what it says."""
    found = value.get(TOOLS) if isinstance(value, dict) else None
    if isinstance(found, str) and found.strip():
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise UnusableError("the tools are text, and no JSON") from None
    if found is None or found in ("", []):
        return None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in cast(Sequence[Any], found)):
        raise UnusableError("the tools are no list of objects")
    return cast(list[Any], found)
