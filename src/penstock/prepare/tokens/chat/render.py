"""Chat templates: their files, and conversations rendered as text with the spans that an assistant generates.

Files are found as by transformers. If there are several templates, conversations with tools use `tool_use`, others
`default`.

| file | contents |
|---|---|
| `chat_template.jinja` | the template, instead of that of the config |
| `additional_chat_templates/NAME.jinja` | more templates, by name |
| `chat_template` in `tokenizer_config.json` | text, or a list of `{"name", "template"}` |

Generated spans are those in `{% generation %}`, if the template has it. Else they are differences of renderings: the
text that an assistant's message adds, after the text of the messages before it and the template's generation prompt.
Each rendering must begin with the one before.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.prepare.tokens.chat.borders import Bordered, make_bordered
from penstock.prepare.tokens.chat.sandbox import (
    Meter,
    TemplateRefusesError,
    TooMuchError,
    has_generation,
    make_environment,
    require_length,
)
from penstock.prepare.tokens.engines import Reference
from penstock.prepare.tokens.tokenizer import TokenizerSpec, read_config
from penstock.store.local import LocalStore
from penstock.store.place import Place

DEFAULT = "default"
TOOL_USE = "tool_use"

_FILE = "chat_template.jinja"
_FOLDER = "additional_chat_templates"
_CONFIG = "tokenizer_config.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_MOST_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Chat template as workers get it. It is hashed and compared by its digest.

    Attributes:
        path: its file, for errors.
        templates: name → text.
        tokens: variables of the template: name → a special token, or several.
        controls: special tokens at which text is split. Messages must not contain them.
        date: the date of `strftime_now`; None if it isn't available.
        normalizer: JSON of the tokenizer's normalizer; empty if no control token is searched in normalized text.
        normalized_controls: `controls` that are.
    """

    path: str
    templates: tuple[tuple[str, str], ...] = field(repr=False, compare=False)
    tokens: tuple[tuple[str, str | tuple[str, ...]], ...] = field(repr=False, compare=False)
    controls: tuple[str, ...] = field(repr=False, compare=False)
    date: str | None
    digest: str
    normalizer: str = field(default="", repr=False, compare=False)
    normalized_controls: tuple[str, ...] = field(default=(), repr=False, compare=False)


def load_template(
    spec: TokenizerSpec, store: LocalStore, date: str | None = None, *, keep_control_tokens: bool = False
) -> ChatTemplate:
    """Load the chat template next to a tokenizer. `date` is `YYYY-MM-DD`.

    Raises:
        ConfigError: there is no template, the tokenizer isn't a `tokenizer.json`, or the date is invalid.
        Corrupt: the template is invalid.
    """
    if spec.kind != "tokenizers":
        what, hint = "conversations need a tokenizer.json", "It maps tokens to characters. Pass its folder"
        raise ConfigError(what, path=spec.path, found=spec.kind, hint=hint)
    folder = Place(store, spec.path).folder()
    config = read_config(folder.child(_CONFIG))
    named = read_config(folder.child("special_tokens_map.json"))
    path, templates = _templates(folder, config)
    if not templates:
        hint = f"Put one next to it as {_FILE}, or into {_CONFIG} as chat_template"
        raise ConfigError("this tokenizer has no chat template", path=folder.path, hint=hint)
    for name, text in templates.items():
        if len(text) > _MOST_CHARS:
            what = f"the chat template {name!r} is too long"
            raise Corrupt(what, path=path, found=len(text), expected=f"at most {_MOST_CHARS} characters")
    # As in transformers: older directories list their tokens in the map.
    names = config if "added_tokens_decoder" in config else {**config, **named}
    tokens = tuple(sorted(_tokens(names).items()))
    tokenizer = json.loads(spec.json)
    added = [] if spec.split_special_tokens or keep_control_tokens else tokenizer.get("added_tokens") or ()
    specials = [one for one in added if one.get("special")]
    controls = tuple(sorted({str(one["content"]) for one in specials}))
    normalizer = tokenizer.get("normalizer")
    normalized = {str(one["content"]) for one in specials if one.get("normalized")} if normalizer else set[str]()
    _require_date(date)
    content = [sorted(templates.items()), tokens, controls, date]
    digest = xxhash.xxh3_128_hexdigest(json.dumps(content).encode())
    return ChatTemplate(
        path, tuple(sorted(templates.items())), tokens, controls, date, digest,
        json.dumps(normalizer) if normalized else "", tuple(sorted(normalized)),
    )  # fmt: skip


def _templates(folder: Place, config: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the file, and the templates by name."""
    path, found = folder.child(_CONFIG).path, dict[str, str]()
    given = config.get("chat_template")
    if isinstance(given, str):
        found[DEFAULT] = given
    elif isinstance(given, list):
        for one in given:
            if not (
                isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)
            ):
                what, expected = "not a chat template", 'a string, or a list of {"name", "template"}'
                raise Corrupt(what, path=path, found=repr(one)[:80], expected=expected)
            found[one["name"]] = one["template"]
    elif given is not None:
        raise Corrupt("not a chat template", path=path, found=type(given).__name__, expected="a string, or a list")
    file = folder.child(_FILE)
    if not file.exists():
        return path, found
    found = {DEFAULT: _text(file)}
    more = folder.child(_FOLDER)
    for name in sorted(more.names()) if more.is_folder() else ():
        if name.endswith(".jinja"):
            found[name.removesuffix(".jinja")] = _text(more.child(name))
    return file.path, found


def _text(file: Place) -> str:
    try:
        return file.store.get(file.path).decode()
    except UnicodeDecodeError as error:
        raise Corrupt("the chat template is not UTF-8", path=file.path, offset_bytes=error.start) from None


def _tokens(config: Mapping[str, Any]) -> dict[str, str | tuple[str, ...]]:
    """Return the special tokens by the names of variables in templates."""
    found: dict[str, str | tuple[str, ...]] = {}
    more = config.get("extra_special_tokens")
    pairs = [(name, config.get(name)) for name in _NAMED] + (list(more.items()) if isinstance(more, Mapping) else [])
    for name, value in pairs:
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str) and content:
            found[str(name)] = content
    for name in _LISTS:
        values = config.get(name)
        if isinstance(values, list) and all(isinstance(one, str) for one in values) and values:
            found[name] = tuple(values)
    return found


def _require_date(date: str | None) -> None:
    if date is not None:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            what, expected = "invalid chat date", "YYYY-MM-DD for chat_date= (--chat-date)"
            raise ConfigError(what, found=repr(date), expected=expected) from None


_MARKER = re.compile(r"<[|｜][^<>|｜\s'\"]{1,64}[|｜]>|<(?:start|end)_of_[a-z_]{1,32}>")


def missing_markers(chat: ChatTemplate, reference: Reference) -> list[str]:
    """Return the markers in the text of a template that the tokenizer splits into several tokens, sorted."""
    markers = sorted({found for _, text in chat.templates for found in _MARKER.findall(text)})
    lengths = reference.encode([marker.encode() for marker in markers])[1].tolist() if markers else []
    return [marker for marker, length in zip(markers, lengths, strict=True) if length != 1]


Spans = list[tuple[int, int]]
"""First and last + 1 characters of generated text, rising."""

ASSISTANT = "assistant"
_STEPS = 50_000
_STEPS_A_CHAR = 64
_SHOWN = 160
_UNTOLD = (
    "generated text can't be identified, because the chat template renders earlier messages differently once others "
    "follow: mark it in the template with {% generation %} and {% endgeneration %}"
)


class UnusableError(Exception):
    """Reason why a conversation can't be rendered, in one line."""


class StoppedError(UnusableError):
    """The template exceeded its limits of steps or text for a conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Input of a template.

    Attributes:
        messages: JSON objects with a `role`.
        tools: JSON objects; None if there are none.
        chars: approximate size. A template may take more steps for more text.
        template_kwargs: more variables, by name.
        untrained: indices of messages that aren't trained on, even if they are generated.
    """

    messages: Sequence[dict[str, Any]]
    tools: list[Any] | None
    chars: int
    untrained: frozenset[int] = frozenset()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Renderer:
    """Renders conversations with the templates of a tokenizer. Not thread-safe.

    Raises:
        Corrupt: a template isn't valid jinja2.
        ConfigError: it marks generated text whose position in the output is unknown.
        MissingExtra: jinja2 isn't installed.
    """

    def __init__(self, chat: ChatTemplate) -> None:
        self._chat = chat
        self._meter = Meter()
        environment = make_environment(self._meter, chat.date)
        self._compiled = {name: _compile(environment, chat, name, text) for name, text in chat.templates}
        self._bordered = {
            name: None if self._compiled[name][1] else make_bordered(environment, text) for name, text in chat.templates
        }
        tokens = {name: list(value) if isinstance(value, tuple) else value for name, value in chat.tokens}
        self._names = {**environment.make_globals(None), **tokens, "documents": None}

    def render(self, conversation: Conversation) -> tuple[str, Spans]:
        """Return the text and its generated spans. Raises `UnusableError`."""
        name = self._name(conversation)
        compiled, marks, takes_tools = self._compiled[name]
        if conversation.tools and not takes_tools:
            raise UnusableError("the conversation has tools, but the chat template doesn't support them")
        if not marks:
            return self._by_difference(name, compiled, conversation)
        text, parts = self._text(compiled, conversation, conversation.messages), list(self._meter.spans)
        if any(text[start : start + len(part)] != part for start, part in parts):
            raise UnusableError("the chat template changes text that it marks as generated")
        untrained = self._parts_of(compiled, conversation, parts) if conversation.untrained else ()
        spans = [(start, start + len(part)) for n, (start, part) in enumerate(parts) if part and n not in untrained]
        return text, spans

    def _parts_of(self, compiled: Any, conversation: Conversation, parts: Sequence[tuple[int, str]]) -> set[int]:
        """Return which of the marked parts belong to untrained messages: those that rendering each of them adds."""
        counts = {0: 0, len(conversation.messages): len(parts)}
        for stop in sorted({stop for index in conversation.untrained for stop in (index, index + 1)} - counts.keys()):
            self._text(compiled, conversation, conversation.messages[:stop])
            counts[stop] = len(self._meter.spans)
            if [*self._meter.spans] != [*parts[: counts[stop]]]:
                raise UnusableError(f"message {stop}: {_UNTOLD}, or remove the marks of messages")
        return {part for index in conversation.untrained for part in range(counts[index], counts[index + 1])}

    def _name(self, conversation: Conversation) -> str:
        if conversation.tools is not None and TOOL_USE in self._compiled:
            return TOOL_USE
        if DEFAULT not in self._compiled:
            what, found = "there are several chat templates but no default", ", ".join(self._compiled)
            raise ConfigError(what, path=self._chat.path, found=found, expected=DEFAULT)
        return DEFAULT

    def _by_difference(self, name: str, compiled: Any, conversation: Conversation) -> tuple[str, Spans]:
        messages = conversation.messages
        bordered = self._bordered.get(name)
        if bordered is not None and messages[0]["role"] != ASSISTANT:
            found = self._by_borders(bordered, compiled, conversation)
            if found is not None:
                return found
        text, spans = self._text(compiled, conversation, messages), Spans()
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT or number in conversation.untrained:
                continue
            before = self._text(compiled, conversation, messages[:number])
            asked = self._text(compiled, conversation, messages[:number], prompt=True)
            is_last = number == len(messages) - 1
            upto = text if is_last else self._text(compiled, conversation, messages[: number + 1])
            if not (text.startswith(upto) and upto.startswith(before)):
                raise UnusableError(f"message {number + 1}: {_UNTOLD}")
            start = len(asked if asked.startswith(before) and upto.startswith(asked) else before)
            if start < len(upto):
                spans.append((start, len(upto)))
        return text, spans

    def _by_borders(self, bordered: Bordered, compiled: Any, conversation: Conversation) -> tuple[str, Spans] | None:
        """Return the same as `_by_difference` from one rendering; None if that isn't possible."""
        messages, meter = conversation.messages, self._meter
        text = self._text(bordered.compiled, conversation, messages)
        looped, borders, spans = meter.looped, [*meter.borders, len(text)], Spans()
        skipped = len(messages) - len(looped) if isinstance(looped, list) else -1
        is_rest = skipped >= 0 and all(one is other for one, other in zip(looped, messages[skipped:], strict=True))
        if meter.looked_ahead or not is_rest or len(borders) != len(looped) + 1:
            return None
        prompt: str | None = None
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT or number in conversation.untrained:
                continue
            if number < skipped:
                return None
            start, stop = borders[number - skipped : number - skipped + 2]
            if bordered.prompt is None:
                asked = self._text(compiled, conversation, messages[:number], prompt=True)
                is_asked, length = asked[:start] == text[:start] and text[:stop].startswith(asked), len(asked)
            else:
                prompt = self._text(bordered.prompt, conversation, (), prompt=True) if prompt is None else prompt
                is_asked, length = text.startswith(prompt, start, stop), start + len(prompt)
            start = length if is_asked else start
            if start < stop:
                spans.append((start, stop))
        return text, spans

    def _text(self, compiled: Any, conversation: Conversation, messages: Sequence[Any], *, prompt: bool = False) -> str:
        meter, parts = self._meter, list[str]()
        meter.begin(_STEPS + _STEPS_A_CHAR * conversation.chars)
        given = {
            **self._names,
            **conversation.template_kwargs,
            "messages": list(messages),
            "tools": conversation.tools,
            "add_generation_prompt": prompt,
        }
        try:
            # As `compiled.generate`, which copies all globals each time.
            for part in compiled.root_render_func(compiled.new_context(given, shared=True)):
                meter.written += len(part)
                require_length(meter.written)
                parts.append(part)
        except TemplateRefusesError as error:
            raise UnusableError(f"the chat template raised an error: {_one_line(error)}") from None
        except TooMuchError as error:
            raise StoppedError(f"{error} and was stopped") from None
        except (PenstockError, KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:  # a template is an untrusted program
            from jinja2.exceptions import SecurityError

            is_unsafe = isinstance(error, SecurityError)
            kind = "accesses something that isn't allowed" if is_unsafe else "fails"
            raise UnusableError(f"the chat template {kind}: {type(error).__name__}: {_one_line(error)}") from None
        return "".join(parts)


def _compile(environment: Any, chat: ChatTemplate, name: str, text: str) -> tuple[Any, bool, bool]:
    """Return `(template, it marks generated text, it uses tools)`."""
    from jinja2 import TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables

    shown = "" if name == DEFAULT else f" {name!r}"
    try:
        marks, hidden = has_generation(environment, text)
        takes_tools = "tools" in find_undeclared_variables(environment.parse(text))
        compiled = environment.from_string(text)
    except TemplateSyntaxError as error:
        what = f"the chat template{shown} is not valid jinja2: line {error.lineno}"
        raise Corrupt(what, path=chat.path, found=_one_line(error)) from None
    except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
        raise Corrupt(f"the chat template{shown} is not valid jinja2", path=chat.path, found=_one_line(error)) from None
    if hidden is not None:
        raise ConfigError(
            f"the chat template{shown} marks generated text inside a macro, a recursive loop, another "
            "mark, or a captured block",
            path=chat.path,
            found=f"line {hidden}",
            hint="Mark it where it is output",
        )
    return compiled, marks, takes_tools


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:_SHOWN]


@functools.lru_cache(maxsize=2)
def load_renderer(chat: ChatTemplate) -> Renderer:
    """Return the renderer of this process for a template, which is compiled once."""
    return Renderer(chat)
