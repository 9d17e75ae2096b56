"""Lines of JSON → conversations as texts, with what of each is generated; a line that is none is a fault of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from penstock._limits import require_memory_for
from penstock._optional import require
from penstock.errors import PrepareError
from penstock.formats.jsonl.scan import believable, maybe_deep
from penstock.prepare.tokens.chat.render import Conversation, Spans, StoppedError, UnusableError, load_renderer
from penstock.prepare.tokens.chat.rows import TEMPLATE_KWARGS, TOOLS, ChatFormat, conversation_of
from penstock.prepare.tokens.chat.template import ChatTemplate
from penstock.prepare.tokens.documents import KeyPath, Texts, encode_text, json_fault, read_lines

_STOPPED_FIRST, _STOPPED_SHARE = 16, 100
"""So many conversations at which a template was stopped by force are left out, or one of so many: each is slow."""


class ChatReader:
    """Blocks of lines → the texts of their conversations.

    Memory: a few times the longest line, and what its template makes of it.

    Args:
        path: the way to the messages of a line.
        chat: the template.
        form: the shape of the rows.
        row_of: gives the row of a line, or raises `UnusableError`; None for its JSON.
        stop_at_fault: of a block, nothing behind its first fault is asked for: a template that ends by force does so
            once.
    """

    def __init__(
        self,
        path: KeyPath,
        chat: ChatTemplate,
        form: ChatFormat = "auto",
        *,
        stop_at_fault: bool = False,
        row_of: Callable[[bytes], Any] | None = None,
    ) -> None:
        self._row_of = row_of
        self._path = path
        self._chat = chat
        self._form: ChatFormat = form
        self._stop_at_fault = stop_at_fault
        self._asked = self._stopped = 0
        self._renderer = load_renderer(chat)
        self._controls = re.compile("|".join(map(re.escape, chat.controls))) if chat.controls else None
        is_escaped = any(json.dumps(one, ensure_ascii=False) != f'"{one}"' for one in chat.controls)
        pattern = "|".join(map(re.escape, chat.controls)).encode(errors="replace")
        is_raw = bool(chat.controls) and not is_escaped and not chat.normalizer
        self._raw_controls = re.compile(pattern) if is_raw else None
        self._normalize = _make_normalizer(chat.normalizer) if chat.normalizer else None
        normalized = map(self._normalize, chat.normalized_controls) if self._normalize else ()
        self._normalized_controls = re.compile("|".join(re.escape(text) for text in normalized if text) or "(?!)")

    def read(self, block: bytes) -> Texts:
        """Texts of a run of whole lines.

        Raises:
            PrepareError: the template had to be stopped at more than 1 % of the conversations, and 16.
        """
        spans: list[Spans] = []
        lines = block.removesuffix(b"\n").split(b"\n")
        is_plain = believable(block, lines) and not maybe_deep(
            lines, np.fromiter(map(len, lines), np.int64, len(lines))
        )
        ended = False

        def text_of(line: bytes) -> bytes | str | None:
            nonlocal ended
            if ended:
                return None
            try:
                conversation = self._conversation(line, is_plain=is_plain)
                self._asked += 1
                text, generated = self._renderer.render(conversation)
                found = encode_text(text, "the output of the chat template")
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
                f"the chat template was stopped at {self._stopped} of {self._asked} conversations",
                path=self._chat.path, found=why, expected=f"at most {_STOPPED_FIRST}, or 1 %", hint="Fix the template",
            )  # fmt: skip

    def _conversation(self, line: bytes, *, is_plain: bool) -> Conversation:
        """Return the conversation in a line; raises `UnusableError`."""
        row = _json(line, is_plain=is_plain) if self._row_of is None else self._row_of(line)
        found = conversation_of(row, self._path, len(line), self._form)
        if self._row_of is not None or self._may_hold_control(line) or _has_parts(found.messages):
            for number, message in enumerate(found.messages, 1):
                self._require_no_control(f"message {number}", message)
            self._require_no_control(TOOLS, found.tools)
            self._require_no_control(TEMPLATE_KWARGS, found.template_kwargs)
        return found

    def _may_hold_control(self, line: bytes) -> bool:
        """Return whether a text in a line may hold a control token, as it is or by characters that are escaped."""
        raw = self._raw_controls
        return raw is None or b"\\u" in line or b"\\/" in line or raw.search(line) is not None

    def _require_no_control(self, what: str, value: Any) -> None:
        """That no text in a value would be a control token: whoever wrote it could end his turn, and begin another."""
        if self._controls is None:
            return
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                found = self._controls.search(one)
                if found is None and self._normalize is not None:
                    found = self._normalized_controls.search(self._normalize(one))
                if found is not None:
                    raise UnusableError(
                        f"{what} contains the control token {found[0]!r} as text: remove it, or --keep-control-tokens"
                    )
            elif isinstance(one, dict):
                waiting += [*one, *one.values()]
            elif isinstance(one, list):
                waiting += one
                # Templates write the text parts of a message one after another.
                texts = [part.get("text") for part in one if isinstance(part, dict)]
                if len(texts) > 1:
                    waiting.append("".join(text for text in texts if isinstance(text, str)))


def _make_normalizer(text: str) -> Callable[[str], str]:
    """Return what the tokenizer does to a text before it looks for its normalized tokens."""
    tokenizers = require("tokenizers", extra="tokenize")
    model = {"type": "BPE", "vocab": {}, "merges": []}
    spec = {"version": "1.0", "added_tokens": [], "normalizer": json.loads(text), "model": model}
    return tokenizers.Tokenizer.from_str(json.dumps(spec)).normalizer.normalize_str


def _has_parts(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether the content of a message is a list of several parts."""
    return any(isinstance(parts := message.get("content"), list) and len(parts) > 1 for message in messages)


def _json(line: bytes, *, is_plain: bool) -> Any:
    """Return the value of a line; `is_plain` if its whole block is believable, which is quicker to tell."""
    if is_plain or (believable(line, [line]) and not maybe_deep([line], np.array([len(line)]))):
        try:
            require_memory_for(line)
            return msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    fault = json_fault(line)
    if fault is not None:
        raise UnusableError(fault)
    return json.loads(line)
