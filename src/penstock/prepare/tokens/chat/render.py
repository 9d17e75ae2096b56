"""A conversation → its text, and which of it an assistant generates: the loss mask of its tokens.

By `{% generation %}` where the template has it. Else by the difference of renderings: what comes with an assistant's
message, after the text of the messages before it and the template's own words that ask for an answer. Each rendering
must begin with the one before.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.prepare.tokens.chat.borders import Bordered, make_bordered
from penstock.prepare.tokens.chat.bounds import TooMuchError, require_length
from penstock.prepare.tokens.chat.sandbox import Meter, TemplateRefusesError, has_generation, make_environment
from penstock.prepare.tokens.chat.template import DEFAULT, TOOL_USE, ChatTemplate

Spans = list[tuple[int, int]]
"""First and last + 1 character of what is generated, rising."""

ASSISTANT = "assistant"
_STEPS = 50_000
_STEPS_A_CHAR = 64
_SHOWN = 160
_UNTOLD = (
    "generated text can't be identified, because the chat template renders earlier messages differently once others "
    "follow: mark it in the template with {% generation %} and {% endgeneration %}"
)


class UnusableError(Exception):
    """Why a conversation can't be rendered, as one line."""


class StoppedError(UnusableError):
    """The template took, or made, more than it may for a conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is given.

    Attributes:
        messages: each a JSON object with its `role`.
        tools: JSON objects; None where there are none.
        chars: of all of it, roughly: a template may take more steps for more text.
        template_kwargs: more that the template gets, by name.
        untrained: indices of messages that stay outside the loss, even if they are generated.
    """

    messages: Sequence[dict[str, Any]]
    tools: list[Any] | None
    chars: int
    untrained: frozenset[int] = frozenset()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Renderer:
    """Renders conversations by one template of a tokenizer. Not thread-safe.

    Raises:
        Corrupt: it is no jinja2.
        ConfigError: it marks generated text where its place is not known.
        MissingExtra: jinja2 is not installed.
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
        """The text, and what of it is generated; raises `UnusableError`."""
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
        """Return what `_by_difference` does, from one rendering; None if that doesn't tell."""
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
            raise UnusableError(f"the chat template raised an error: {_said(error)}") from None
        except TooMuchError as error:
            raise StoppedError(f"{error} and was stopped") from None
        except (PenstockError, KeyboardInterrupt, SystemExit):
            raise
        except Exception as error:  # a template is a program, of anybody
            kind = "accesses something that isn't allowed" if _is_unsafe(error) else "fails"
            raise UnusableError(f"the chat template {kind}: {type(error).__name__}: {_said(error)}") from None
        return "".join(parts)


def _compile(environment: Any, chat: ChatTemplate, name: str, text: str) -> tuple[Any, bool, bool]:
    """`(template, whether it marks what is generated, whether it takes tools)`."""
    from jinja2 import TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables

    shown = "" if name == DEFAULT else f" {name!r}"
    try:
        marks, hidden = has_generation(environment, text)
        takes_tools = "tools" in find_undeclared_variables(environment.parse(text))
        compiled = environment.from_string(text)
    except TemplateSyntaxError as error:
        what = f"the chat template{shown} is not valid jinja2: line {error.lineno}"
        raise Corrupt(what, path=chat.path, found=_said(error)) from None
    except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
        raise Corrupt(f"the chat template{shown} is not valid jinja2", path=chat.path, found=_said(error)) from None
    if hidden is not None:
        raise ConfigError(
            f"the chat template{shown} marks generated text inside a macro, a recursive loop, another "
            "mark, or a captured block",
            path=chat.path,
            found=f"line {hidden}",
            hint="Mark it where it is output",
        )
    return compiled, marks, takes_tools


def _is_unsafe(error: Exception) -> bool:
    from jinja2.exceptions import SecurityError

    return isinstance(error, SecurityError)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:_SHOWN]


@functools.lru_cache(maxsize=2)
def load_renderer(chat: ChatTemplate) -> Renderer:
    """The renderer of this process for a template; compiled once."""
    return Renderer(chat)
