"""Conversations rendered as text, with the spans that an assistant generates.

Generated spans are those in `{% generation %}`, if the template has it. Else they are differences of renderings: the
text that an assistant's message adds, after the text of the messages before it and the template's generation prompt.
Each rendering must begin with the one before.

One rendering is enough for most templates: they are one loop over the messages, in which each round writes one message
and doesn't look at later ones. Then the rendering of the first messages is the beginning of the rendering of all, and
ends where the next round begins. `make_bordered` rewrites such a template to record these offsets. Every expression by
which a round could know of later messages, such as `loop.last` or another use of `messages`, is wrapped: if a
conversation reaches it, the borders are invalid, and the beginnings are rendered one by one.

This module imports jinja2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.meta import find_undeclared_variables
from jinja2.visitor import NodeTransformer

from penstock.errors import ConfigError, Corrupt, PenstockError
from penstock.prepare.tokens.chat.sandbox import (
    Meter,
    TemplateRefusesError,
    TooMuchError,
    apply_filter,
    has_generation,
    make_environment,
    require_length,
)
from penstock.prepare.tokens.chat.template import (
    ASSISTANT,
    DEFAULT,
    TOOL_USE,
    ChatTemplate,
    Conversation,
    Spans,
    StoppedError,
    UnusableError,
)

_STEPS = 50_000
_STEPS_A_CHAR = 64
_SHOWN = 160
_UNTOLD = (
    "generated text can't be identified, because the chat template renders earlier messages differently once others "
    "follow: mark it in the template with {% generation %} and {% endgeneration %}"
)


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
            is_unsafe = isinstance(error, SecurityError)
            kind = "accesses something that isn't allowed" if is_unsafe else "fails"
            raise UnusableError(f"the chat template {kind}: {type(error).__name__}: {_one_line(error)}") from None
        return "".join(parts)


def _compile(environment: Any, chat: ChatTemplate, name: str, text: str) -> tuple[Any, bool, bool]:
    """Return `(template, it marks generated text, it uses tools)`."""
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
    return Renderer(chat)


# --- borders of messages

MESSAGES = "messages"
PROMPT = "add_generation_prompt"
_LOOKS_BACK = frozenset(("first", "index", "index0", "depth", "depth0", "previtem", "changed", "cycle"))
"""Attributes of `loop` that don't depend on later messages."""

_Prompts = list[tuple[Any, list[Any], list[Any]]]
"""Branches for the generation prompt: the list that held each of them, its conditions, and its body."""


@dataclass(frozen=True, slots=True)
class Bordered:
    """Template that records where its messages begin.

    `compiled` renders without a generation prompt. `prompt` renders that; None if it depends on the messages.
    """

    compiled: Any
    prompt: Any


def make_bordered(environment: Any, text: str) -> Bordered | None:
    """Return a template that records where its messages begin; None if it isn't a loop over the messages."""
    try:
        return _bordered(environment, text)
    except RecursionError:  # a template can be nested too deeply for the walk
        return None


def _bordered(environment: Any, text: str) -> Bordered | None:
    tree = environment.parse(text)
    prompts = _take_prompts(tree)
    loops = [at for at, node in enumerate(tree.body) if isinstance(node, nodes.For) and _is_name(node.iter)]
    if prompts is None or not loops:
        return None
    at = loops[-1]
    loop = tree.body[at]
    if loop.recursive or loop.test is not None or loop.else_ or not all(map(_is_silent, tree.body[at + 1 :])):
        return None
    aliases, allowed = _aliases(tree.body[:at])
    if loop.iter.name not in aliases:
        return None
    prompt = _prompt(environment, tree, loop, prompts)
    _wrap(tree, loop, aliases, allowed)
    loop.iter = apply_filter("_rounds", loop.iter)
    return Bordered(_compile_tree(environment, tree), prompt)


def _compile_tree(environment: Any, tree: Any) -> Any:
    return environment.template_class.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _is_name(node: Any, name: str | None = None) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and name in (None, node.name)


def _is_silent(node: Any) -> bool:
    return isinstance(node, nodes.Output) and all(
        isinstance(one, nodes.TemplateData) and not one.data for one in node.nodes
    )


def _find(kind: Any, body: Iterable[Any]) -> list[Any]:
    """Return all nodes of a kind in these nodes, but not those inside one of them that is of this kind itself."""
    return [found for one in body for found in ([one] if isinstance(one, kind) else one.find_all(kind))]


def _take_prompts(tree: Any) -> _Prompts | None:
    """Remove the branches of the prompt, and return them; None if one has an `elif`."""
    found: _Prompts = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        branches = [field for field in node.iter_fields() if field[0] in ("body", "else_", "elif_")]
        for name, branch in branches:
            if not isinstance(branch, list):
                continue
            for at, one in enumerate(branch):
                conditions = _conjuncts(one.test) if isinstance(one, nodes.If) else []
                if any(_is_name(condition, PROMPT) for condition in conditions):
                    if one.elif_ or one.else_ or name == "elif_":
                        return None
                    found.append((branch, conditions, one.body))
                    branch[at] = nodes.Output([]).set_lineno(one.lineno)
                    branch[at].set_environment(tree.environment)
                else:
                    waiting.append(one)
    return found


def _conjuncts(test: Any) -> list[Any]:
    return _conjuncts(test.left) + _conjuncts(test.right) if isinstance(test, nodes.And) else [test]


def _aliases(prelude: Sequence[Any]) -> tuple[set[str], set[int]]:
    """Return the names before the loop of the messages, or of all but the first ones, and the uses in their making."""
    found, uses = {MESSAGES}, set[int]()
    for _ in range(2):
        for one in _find(nodes.Assign, prelude):
            name = _rest(one.node, found) if isinstance(one.target, nodes.Name) else None
            if name is not None:
                found.add(one.target.name)
                uses.add(id(name))
    return found, uses


def _rest(node: Any, aliases: set[str]) -> Any:
    """Return the name in `NAME` or `NAME[1:]`, if it is one of the aliases; else None."""
    named: Any = node
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        part, named = node.arg, node.node
        starts_late = (
            isinstance(part.start, nodes.Const) and isinstance(part.start.value, int) and part.start.value >= 0
        )
        if not starts_late or part.stop is not None or part.step is not None:
            return None
    return named if _is_name(named) and named.name in aliases else None


def _prompt(environment: Any, tree: Any, loop: Any, prompts: _Prompts) -> Any:
    """Return a template of the branches of the prompt; None if they depend on the messages."""
    names: list[Any] = list(tree.find_all(nodes.Name))
    if any(_is_name(node, PROMPT) for node in names):
        return None
    assigned = {node.name for node in names if node.ctx != "load"} | {MESSAGES, "loop"}
    assigned |= {node.name for node in tree.find_all(nodes.Macro)}
    inside, behind = list[Any](), list[Any]()
    for branch, conditions, body in prompts:
        others = [one for one in conditions if not _is_name(one, PROMPT)]
        if branch is tree.body and not others:
            behind += body
        elif (
            branch is loop.body
            and not inside
            and len(others) == 1
            and isinstance(others[0], nodes.Getattr)
            and _is_name(others[0].node, "loop")
            and others[0].attr == "last"
            and _ends(loop.body)
        ):
            inside += body
        else:
            return None
    whole = nodes.Template([*inside, *behind])
    whole.set_lineno(1)
    whole.set_environment(environment)
    used: Any = whole.find_all((nodes.Name, nodes.NSRef, nodes.Macro, nodes.Block, nodes.CallBlock))
    if any(not isinstance(one, nodes.Name) or one.ctx != "load" or one.name in assigned for one in used):
        return None
    return _compile_tree(environment, whole)


def _ends(body: Sequence[Any]) -> bool:
    """Return whether a loop writes nothing after the removed branch."""
    removed = [at for at, node in enumerate(body) if isinstance(node, nodes.Output) and not node.nodes]
    return len(removed) == 1 and all(map(_is_silent, body[removed[0] :]))


def _wrap(tree: Any, loop: Any, aliases: set[str], allowed: set[int]) -> None:
    """Wrap each expression by which a round could know of later messages; `allowed`: ids of names that tell nothing."""
    allowed.add(id(loop.iter))
    if all(node.ctx == "load" for node in tree.find_all(nodes.Name) if node.name == MESSAGES):
        for item in tree.find_all(nodes.Getitem):
            is_first = isinstance(item.arg, nodes.Const) and type(item.arg.value) is int and item.arg.value == 0
            if is_first and _is_name(item.node, MESSAGES):
                allowed.add(id(item.node))
    for attribute in tree.find_all(nodes.Getattr):
        if _is_name(attribute.node, "loop") and attribute.attr in _LOOKS_BACK:
            allowed.add(id(attribute.node))
    for inner in tree.find_all(nodes.For):
        if inner is not loop:  # its body has a `loop` of its own
            allowed |= {id(name) for name in _find(nodes.Name, inner.body) if name.name == "loop"}
    _Wrapper(aliases, allowed).visit(tree)


class _Wrapper(NodeTransformer):
    def __init__(self, aliases: set[str], allowed: set[int]) -> None:
        self._wrapped = {*aliases, "loop"}
        self._allowed = allowed

    def visit_Name(self, node: Any) -> Any:
        is_ahead = _is_name(node) and node.name in self._wrapped and id(node) not in self._allowed
        return apply_filter("_ahead", node) if is_ahead else node
