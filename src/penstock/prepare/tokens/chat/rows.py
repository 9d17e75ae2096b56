"""Rows of chat data as conversations, and lines of conversations as rendered texts.

A message is an object with a `role` and a `content`: text, a list of parts, or null in a message that calls tools.
`tools` next to the messages is passed to templates that use it. Messages are normalized as by `apply_chat_template` of
transformers:

| in the data | in the template |
|---|---|
| a null key of a message | no such key |
| a null deeper inside, such as in the arguments of a call | that null |
| `reasoning` or `thinking` | `reasoning_content` and `thinking` too |

In a table all structs of a column have the same fields, so a field that is missing in a row is null there. Such nulls
are dropped at any depth, since they can't be told from nulls of the data.

The keys in `MARKS`, which mark messages for training, never reach the template. Any other key that looks like a mark is
an error, since ignoring it would train on the wrong text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import msgspec
import numpy as np

from penstock._limits import require_memory_for
from penstock._naming import nearest
from penstock._optional import require
from penstock.errors import PrepareError
from penstock.formats.jsonl.scan import believable, maybe_deep
from penstock.prepare.tokens.chat.template import (
    ASSISTANT,
    ChatTemplate,
    Conversation,
    Spans,
    StoppedError,
    UnusableError,
)
from penstock.prepare.tokens.documents import (
    KINDS,
    Fault,
    KeyPath,
    Texts,
    encode_text,
    is_plain_json,
    json_fault,
    read_lines,
    value_at,
)

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys for the reasoning of a message; the first one that isn't null counts."""


def normalize_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without its null keys, and with its reasoning under the names that templates know."""
    found = {key: value for key, value in message.items() if value is not None}
    reasoning = next((found[key] for key in _REASONING if key in found), None)
    return found if reasoning is None else {"thinking": reasoning, **found, "reasoning_content": reasoning}


class NullFields:
    """Drops null fields of structs in rows of a table.

    `names` are these fields, such as `messages[].tool_calls[].id`, except null keys of a message itself, which
    transformers drops as well.
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


ChatFormat = Literal["auto", "messages", "sharegpt", "alpaca", "prompt-completion"]
CHAT_FORMATS: tuple[ChatFormat, ...] = ("auto", "messages", "sharegpt", "alpaca", "prompt-completion")

MESSAGES = "messages"
TOOLS = "tools"
TEMPLATE_KWARGS = "chat_template_kwargs"
MARKS = {
    **dict.fromkeys(("weight", "loss_mask", "mask", "train", "trainable", "training"), True),
    "masked": False,
}
"""Keys of a message that mark it → whether 1 means that it is trained on."""

BESIDE = ("system", TOOLS, TEMPLATE_KWARGS, *MARKS)
"""Keys next to the messages that are read, or are errors."""

KEYS = (
    *(MESSAGES, "conversations", "conversation", "instruction", "input", "output", "history"),
    *("prompt", "completion", *BESIDE),
)
"""Keys of a row that are read."""
ROLES = (
    *("system", "developer", "user", "assistant", "tool"),
    *("function", "ipython", "observation", "environment", "document", "tool_call", "tool_response"),
)
"""Known roles. Templates know some of them."""

FUNCTION_CALL = "function_call"
"""The role in ShareGPT of a message of the assistant whose text is a call, or a list of calls, as JSON."""

ALIASES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant"}
"""Other names of roles."""
_RESERVED = frozenset(
    (
        *(MESSAGES, TOOLS, "documents", "add_generation_prompt", "continue_final_message", "tokenize"),
        *("chat_template", "conversation", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs"),
    )
)
"""Arguments of `apply_chat_template` that aren't passed to templates."""

_LOOKS_LIKE_MARK = re.compile("mask|weight|train|loss", re.IGNORECASE)
_LOOKS_LIKE_MARKS = re.compile("(mask|weight)s?$", re.IGNORECASE)


def conversation_of(row: Any, path: KeyPath, chars: int, form: ChatFormat = "auto") -> Conversation:
    """Return the conversation in a row of about `chars` characters, with its messages at `path`.

    Raises:
        UnusableError: the row isn't a conversation, or has marks that can't be honored.
    """
    beside = _beside(row, path)
    messages, num_prompt = _messages(row, path, form, beside)
    _require_no_row_marks(beside, len(messages))
    checked: list[dict[str, Any]] = []
    untrained: set[int] = set()
    for index, value in enumerate(messages):
        message, is_trained = _take_marks(index + 1, value)
        message = normalize_message(_checked(index + 1, _with_role(index + 1, message)))
        checked.append(message)
        if is_trained is False or (is_trained is None and index < num_prompt):
            untrained.add(index)
        elif is_trained and message["role"] != ASSISTANT:
            mark = next(key for key in value if key in MARKS and value[key] is not None)
            raise UnusableError(
                f"message {index + 1} of {message['role']} is marked as trained: {mark!r} is {value[mark]!r}, "
                f"but only assistant messages are trained on. Remove the mark"
            )
    return Conversation(checked, _tools(beside), chars, frozenset(untrained), _template_kwargs(beside))


def _beside(row: Any, path: KeyPath) -> dict[str, Any]:
    """Return the keys next to the messages: of the object that holds them, else of the row."""
    found = cast(dict[str, Any], row) if isinstance(row, dict) else {}
    holder = value_at(row, path[:-1]) if len(path) > 1 else None
    return {**found, **cast(dict[str, Any], holder)} if isinstance(holder, dict) else found


def looks_like_row_mark(key: str) -> bool:
    """Return whether a key next to the messages may say which of them are trained on."""
    return key in MARKS or _LOOKS_LIKE_MARKS.search(key) is not None


def _require_no_row_marks(beside: dict[str, Any], num_messages: int) -> None:
    """Raise `UnusableError` for a mark of a whole row, which would be ignored. A weight for sampling isn't a mark."""
    for key, value in beside.items():
        if not looks_like_row_mark(key):
            continue
        if isinstance(value, list):
            is_mark = key in MARKS or len(cast(list[Any], value)) == num_messages
        else:
            is_mark = key in MARKS and isinstance(value, bool | int | float) and value == (not MARKS[key])
        if is_mark:
            raise UnusableError(
                f"{key!r} next to the messages looks like a loss mask: mark messages one by one, or remove it"
            )


def _messages(row: Any, path: KeyPath, form: ChatFormat, beside: dict[str, Any]) -> tuple[list[Any], int]:
    """Return the messages of a row, and how many of them are a prompt, which isn't trained on."""
    columns = cast(dict[str, Any], row) if isinstance(row, dict) else {}
    name = _shape(columns, path) if form == "auto" else form
    if name == "alpaca":
        return _of_alpaca(columns), 0
    if name == "prompt-completion":
        prompt, completion = (
            _turns(columns, key, role) for key, role in (("prompt", "user"), ("completion", ASSISTANT))
        )
        if isinstance(columns["prompt"], str) != isinstance(columns["completion"], str):
            raise UnusableError("the prompt and the completion must both be text or both be messages")
        prompt = [*_system(beside, prompt), *prompt]
        return [*prompt, *completion], len(prompt)
    if name == "sharegpt" and path == (MESSAGES,):
        path = next(((key,) for key in ("conversations", "conversation") if key in columns), ("conversations",))
    value = value_at(row, path)
    if isinstance(value, Fault):
        raise UnusableError(str(value))
    messages = _decoded(value)
    if not isinstance(messages, list) or not messages:
        found = "empty" if messages == [] else KINDS[type(messages)]
        raise UnusableError(f"the messages are {found}, not a list of objects with role and content")
    turns = cast(list[Any], messages)
    return [*_system(beside, turns), *turns], 0


def _shape(columns: dict[str, Any], path: KeyPath) -> ChatFormat:
    """Return the only shape that a row can have; raises `UnusableError` if it can have several."""
    if path != (MESSAGES,):
        return "messages"
    names: dict[ChatFormat, tuple[str, ...]] = {
        "messages": (MESSAGES,),
        "alpaca": ("instruction", "output"),
        "prompt-completion": ("prompt", "completion"),
    }
    found: list[ChatFormat] = []
    found.extend(name for name, keys in names.items() if all(columns.get(key) is not None for key in keys))
    if any(columns.get(key) is not None for key in ("conversations", "conversation")):
        found.append("sharegpt")
    if len(found) > 1:
        raise UnusableError(
            f"the row matches several conversation formats: {', '.join(found)}. Choose one with --chat-format"
        )
    return found[0] if found else "messages"


def _of_alpaca(columns: dict[str, Any]) -> list[Any]:
    """Return a question with its input on the next line, and its answer, after those of `history`."""
    texts: dict[str, str] = {}
    for key in ("instruction", "input", "output"):
        value = columns.get(key)
        if not isinstance(value, str) and (value is not None or key != "input"):
            raise UnusableError(f"{key!r} is {KINDS[type(value)] if key in columns else 'missing'}, not text")
        texts[key] = value or ""
    messages: list[Any] = []
    history = columns.get("history") or []
    for pair in cast(list[Any], history) if isinstance(history, list) else [history]:
        turns = cast(list[Any], pair) if isinstance(pair, list) else []
        if len(turns) != 2 or not all(isinstance(text, str) for text in turns):
            raise UnusableError("'history' isn't a list of question-answer pairs")
        messages += [{"role": role, "content": text} for role, text in zip(("user", ASSISTANT), turns, strict=True)]
    question = "\n".join(text for text in (texts["instruction"], texts["input"]) if text)
    messages += [{"role": "user", "content": question}, {"role": ASSISTANT, "content": texts["output"]}]
    return [*_system(columns, messages), *messages]


def _turns(columns: dict[str, Any], key: str, role: str) -> list[Any]:
    value = columns.get(key)
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        found = "missing" if key not in columns else "empty" if value == [] else KINDS[type(value)]
        raise UnusableError(f"{key!r} is {found}, not text or a list of messages")
    return cast(list[Any], value)


def _system(columns: dict[str, Any], messages: list[Any]) -> list[Any]:
    """Return the message of a `system` text next to the messages, unless they begin with it."""
    text = columns.get("system")
    if text is None or text == "":
        return []
    first = messages[0]
    if not isinstance(text, str):
        raise UnusableError(f"'system' is {KINDS[type(text)]}, not text")
    if isinstance(first, dict) and "system" in (first.get("role"), first.get("from")):
        if text in (first.get("content"), first.get("value")):
            return []
        raise UnusableError("the row has a 'system' text, but its first message is a system message too")
    return [{"role": "system", "content": text}]


def _with_role(number: int, message: dict[str, Any]) -> dict[str, Any]:
    if message.get("role") is None and "from" in message:
        if "value" not in message or message.get("content") is not None:
            raise UnusableError(f"message {number} has 'from' but not exactly one 'value'{_keys(message)}")
        names = {"from": "role", "value": "content"}
        message = {names.get(key, key): value for key, value in message.items() if key not in ("role", "content")}
        if message["role"] == FUNCTION_CALL:
            return _as_calls(number, message)
        if message["role"] == "observation":
            return {**message, "role": "tool"}
    role = message.get("role")
    return {**message, "role": ALIASES[role]} if isinstance(role, str) and role in ALIASES else message


def _as_calls(number: int, message: dict[str, Any]) -> dict[str, Any]:
    value = _decoded(message["content"])
    calls = cast(list[Any], value) if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise UnusableError(f"message {number} of {FUNCTION_CALL!r} isn't a JSON call with name and arguments")
    tool_calls = [{"type": "function", "function": call} for call in calls]
    return {**message, "role": ASSISTANT, "content": "", "tool_calls": tool_calls}


def _decoded(value: Any) -> Any:
    """Return the value of JSON text; other text and values are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _template_kwargs(row: Any) -> dict[str, Any]:
    value = _decoded(row.get(TEMPLATE_KWARGS)) if isinstance(row, dict) else None
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise UnusableError(f"{TEMPLATE_KWARGS!r} is {KINDS[type(value)]}, not an object")
    found = cast(dict[str, Any], value)
    if taken := _RESERVED & found.keys():
        raise UnusableError(f"{TEMPLATE_KWARGS!r} can't have the key {min(taken)!r}")
    return found


def _take_marks(number: int, message: Any) -> tuple[dict[str, Any], bool | None]:
    """Return a message without its marks, and whether it is trained on; None without marks."""
    if not isinstance(message, dict):
        raise UnusableError(f"message {number} is {KINDS[type(message)]}, not an object with role and content")
    whole = cast(dict[str, Any], message)
    _require_no_other_marks(f"message {number}", whole)
    parts = whole.get("content")
    for part in cast(list[Any], parts) if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            raise UnusableError(f"a part of message {number} is {KINDS[type(part)]}, not an object with type")
        _require_no_other_marks(f"a part of message {number}", cast(dict[str, Any], part), honored={})
        if part.get("type") == "text" and "text" in part and part["text"] is None:
            raise UnusableError(f"a part of message {number} is of type text, but its text is null")
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


def _require_no_other_marks(where: str, value: dict[str, Any], honored: dict[str, bool] = MARKS) -> None:
    """Raise `UnusableError` for a key that looks like a mark but isn't honored."""
    for key in value:
        if _LOOKS_LIKE_MARK.search(key) and key not in honored and value[key] is not None:
            raise UnusableError(
                f"{where} has the key {key!r}, which looks like a loss mask. Rename or remove it, "
                f"or mark whole messages with one of {', '.join(MARKS)}"
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
        raise UnusableError(f"message {number} has content that is {KINDS[type(content)]}, not text")
    if content is None and sum(value is not None for value in message.values()) < 2:
        raise UnusableError(f"message {number} has no content{_keys(message)}")
    return message


def _keys(message: dict[str, Any]) -> str:
    return f" (fields: {', '.join(list(message)[:8])})" if message else ""


def _tools(row: Any) -> list[Any] | None:
    """Return the tools of a conversation, which can be JSON text; None if there are none, which an empty list isn't."""
    tools = row.get(TOOLS) if isinstance(row, dict) else None
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise UnusableError("the tools are text, but not valid JSON") from None
    if tools is None or tools == "":
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in cast(Sequence[Any], tools)):
        raise UnusableError("the tools aren't a list of objects")
    return cast(list[Any], tools)


_STOPPED_FIRST, _STOPPED_SHARE = 16, 100
"""Conversations at which a template may be stopped by force, or one in how many: each is slow."""


class ChatReader:
    """Reads lines as the texts of their conversations.

    Memory: a few times the longest line, and its rendered text.

    Args:
        path: the path to the messages of a line.
        chat: the template.
        form: the shape of the rows.
        row_of: returns the row of a line, or raises `UnusableError`; None: its JSON.
        stop_at_fault: don't read a block beyond its first invalid line: a template is stopped by force only once.
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
        require("jinja2", extra="chat")
        from penstock.prepare.tokens.chat.render import load_renderer  # imports jinja2

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
        """Return the texts of a run of whole lines.

        Raises:
            PrepareError: the template was stopped at more than 16 conversations and 1 % of them.
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
                found, generated = str(error), []
                self._stopped += 1
                if self._stopped > max(_STOPPED_FIRST, self._asked // _STOPPED_SHARE):
                    raise PrepareError(
                        f"the chat template was stopped at {self._stopped} of {self._asked} conversations",
                        path=self._chat.path, found=found, expected=f"at most {_STOPPED_FIRST}, or 1 %",
                        hint="Fix the template",
                    ) from None  # fmt: skip
            except UnusableError as error:
                found, generated = str(error), []
            if isinstance(found, bytes):
                spans.append(generated)
            else:
                ended = self._stop_at_fault
            return found

        return replace(read_lines(block, text_of), spans=spans)

    def _conversation(self, line: bytes, *, is_plain: bool) -> Conversation:
        row = _json(line, is_plain=is_plain) if self._row_of is None else self._row_of(line)
        found = conversation_of(row, self._path, len(line), self._form)
        contents = [message.get("content") for message in found.messages]
        has_parts = any(isinstance(content, list) and len(cast(list[Any], content)) > 1 for content in contents)
        if self._row_of is not None or has_parts or self._may_hold_control(line):
            for number, message in enumerate(found.messages, 1):
                self._require_no_control(f"message {number}", message)
            self._require_no_control(TOOLS, found.tools)
            self._require_no_control(TEMPLATE_KWARGS, found.template_kwargs)
        return found

    def _may_hold_control(self, line: bytes) -> bool:
        raw = self._raw_controls
        return raw is None or b"\\u" in line or b"\\/" in line or raw.search(line) is not None

    def _require_no_control(self, what: str, value: Any) -> None:
        """Raise `UnusableError` if a text in a value contains a control token, which could end a turn."""
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
                # Templates concatenate the text parts of a message.
                texts = [part.get("text") for part in one if isinstance(part, dict)]
                if len(texts) > 1:
                    waiting.append("".join(text for text in texts if isinstance(text, str)))


def _make_normalizer(text: str) -> Callable[[str], str]:
    """Return the tokenizer's normalization of a text, in which it searches its normalized tokens."""
    tokenizers = require("tokenizers", extra="tokenize")
    model = {"type": "BPE", "vocab": {}, "merges": []}
    spec = {"version": "1.0", "added_tokens": [], "normalizer": json.loads(text), "model": model}
    return tokenizers.Tokenizer.from_str(json.dumps(spec)).normalizer.normalize_str


def _json(line: bytes, *, is_plain: bool) -> Any:
    """Return the value of a line; `is_plain`: msgspec can read its whole block, which is checked faster."""
    if is_plain or is_plain_json(line):
        try:
            require_memory_for(line)
            return msgspec.json.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    fault = json_fault(line)
    if fault is not None:
        raise UnusableError(fault)
    return json.loads(line)
