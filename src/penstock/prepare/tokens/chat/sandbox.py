"""The jinja2 environment of chat templates: that of transformers, in which a template of anybody's ends soon.

`ImmutableSandboxedEnvironment` with trimmed blocks, loop controls, `{% generation %}`, `tojson`, `raise_exception` and
`strftime_now`. The sandbox keeps a template from attributes and calls that are not its own. Besides, loops, calls and
what `range` gives are steps, which are counted: their number does not depend on the machine, as a time would. No text
or list that a template makes may be longer than a bound.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from penstock._optional import require
from penstock.errors import ConfigError

EXTRA = "chat"
MOST_CHARS = 1 << 26
"""Of a text that a template makes."""
_MOST_NUMBER = 1_000_000
_MOST_BITS = 1 << 14
_CHARS_A_STEP = 256
_WIDTH = re.compile(r"\d{7}")
_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs"))


class TemplateRefusesError(Exception):
    """What a template says by `raise_exception`."""


class TooMuchError(Exception):
    """A template that takes more steps, or makes longer texts, than one may."""


@dataclass(slots=True)
class Meter:
    """What one rendering may still do, and which of its text is generated.

    Attributes:
        left: steps.
        written: characters of the text so far.
        spans: first and last + 1 character of what stood in `{% generation %}`, and its text.
    """

    left: int = 0
    written: int = 0
    spans: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    def begin(self, steps: int) -> None:
        """Let one rendering take so many steps."""
        self.left, self.written = steps, 0
        self.spans.clear()

    def step(self, count: int = 1) -> None:
        """Take steps; raises `TooMuchError`."""
        self.left -= count
        if self.left < 0:
            raise TooMuchError("the template takes too many steps: it may loop for ever")

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """The same values, a step each."""
        for value in values:
            self.step()
            yield value

    def sized(self, value: Any) -> Any:
        """A value that was made, unless it is too long."""
        if isinstance(value, str | list | tuple | bytes):
            require_length(len(value))
            self.step(len(value) // _CHARS_A_STEP)
        return value

    def range(self, *args: int) -> range:
        """What `range` gives, a step each."""
        found = range(*args)
        if len(found) > _MOST_NUMBER:
            raise TooMuchError("the template asks for too long a range")
        self.step(len(found))
        return found

    def generated(self, caller: Callable[[], str]) -> str:
        """The text of a `{% generation %}`, whose place is noted."""
        text = caller()
        self.spans.append((self.written, text))
        return text


def require_length(length: int) -> None:
    """That a template may make what is so long; raises `TooMuchError`."""
    if length > MOST_CHARS:
        raise TooMuchError("the template makes too long a text")


def _require_call(obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """That a method of a text gives none that is too long, before it does."""
    method = getattr(obj, "__wrapped__", obj)
    text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if isinstance(text, str):
        require_filter(name, (text, *args), kwargs)


def require_filter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The same of a filter, or a method, of the first of `args`."""
    given = [*args[1:], *kwargs.values()]
    text = args[0] if args and isinstance(args[0], str) else None
    numbers = any(isinstance(one, int) and abs(one) > _MOST_NUMBER for one in given)
    if numbers and (name in _PADDING or name in ("indent", "batch", "slice", "wordwrap")):
        raise TooMuchError("the template asks for too wide a text")
    if name in ("format", "format_map") and text is not None and (_WIDTH.search(text) or numbers):
        raise TooMuchError("the template asks for too wide a text")
    if name == "replace" and text is not None and len(given) >= 2 and isinstance(given[1], str):
        old = given[0] if isinstance(given[0], str) else ""
        require_length(len(text) + (text.count(old) if old else len(text) + 1) * len(given[1]))
    if name == "indent" and text is not None:
        width = next((one for one in given if isinstance(one, int | str)), 4)
        require_length(len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width))


def operate(meter: Meter, operator: str, left: Any, right: Any, plain: Callable[[Any, Any], Any]) -> Any:
    """`left operator right`, unless the result is too long."""
    if operator == "*":
        for many, count in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(count, int):
                require_length(len(many) * max(0, count))
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(0, right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TooMuchError("the template makes too large a number")
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        require_length(len(left) + len(right))
    if operator == "%" and isinstance(left, str) and (_WIDTH.search(left) or "*" in left):
        raise TooMuchError("the template asks for too wide a text")
    return meter.sized(plain(left, right))


def make_environment(meter: Meter, date: str | None) -> Any:
    """The environment of all renderings that are counted by `meter`; not thread-safe."""
    require("jinja2", extra=EXTRA)
    environment = _environment_class()(meter)
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=functools.partial(_strftime, date), range=meter.range
    )
    return environment


def _raise_exception(message: Any = "") -> NoReturn:
    raise TemplateRefusesError(str(message))


def _strftime(date: str | None, format: str) -> str:
    if date is None:
        raise ConfigError(
            "the chat template asks which day it is, and the bytes of an output may not depend on that",
            hint="Name the day: chat_date= (--chat-date YYYY-MM-DD)",
        )
    if _WIDTH.search(format):
        raise TooMuchError("the template asks for too wide a text")
    return datetime.datetime.fromisoformat(date).strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where jinja2's own filter escapes what HTML would."""
    if isinstance(indent, int) and indent > 64:
        raise TooMuchError("the template asks for too wide a text")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.cache
def _generation() -> Any:
    """The extension for `{% generation %}`: what an assistant says."""
    import jinja2.ext
    import jinja2.nodes as nodes

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012 (a class variable, which jinja2 does not call one)

        def parse(self, parser: Any) -> Any:
            number = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("generated"), [], [], body).set_lineno(number)

        def generated(self, caller: Any) -> str:
            return cast(Any, self.environment).meter.generated(caller)

    return Generation


@functools.cache
def _guards() -> Any:
    """What changes a parsed template: the rounds of loops are counted, and texts that are put together are measured."""
    import jinja2.nodes as nodes
    from jinja2.visitor import NodeTransformer

    def through(name: str, node: Any) -> Any:
        found = nodes.Filter(node, name, [], [], None, None)
        found.set_environment(node.environment)
        return found.set_lineno(node.lineno)

    class Guards(NodeTransformer):
        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            node.iter = through("_counted", node.iter)
            return node

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            return through("_sized", node)

    return Guards()


@functools.cache
def _environment_class() -> Any:
    """The class, which needs jinja2."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class ChatEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def __init__(self, meter: Meter) -> None:
            extensions = [_generation(), loopcontrols]
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
            self.meter = meter
            self.filters = {name: self._guarded(name, one) for name, one in self.filters.items()}
            self.filters |= {"tojson": _tojson, "_counted": meter.counted, "_sized": meter.sized}

        def _generate(self, source: Any, *args: Any, **kwargs: Any) -> Any:
            return super()._generate(_guards().visit(source), *args, **kwargs)

        def handle_exception(self, source: str | None = None) -> NoReturn:
            raise  # a traceback as the template's own lines takes long where that went deep

        def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            _require_call(obj, args, kwargs)
            return self.meter.sized(super().call(context, obj, *args, **kwargs))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            return operate(self.meter, operator, left, right, lambda a, b: self.binop_table[operator](a, b))

        def _guarded(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(plain)  # with what it wants to be given first
            def guarded(*args: Any, **kwargs: Any) -> Any:
                given = args[1:] if hasattr(plain, "jinja_pass_arg") else args
                require_filter(name, given, kwargs)
                self.meter.step()
                return self.meter.sized(plain(*args, **kwargs))

            return guarded

    return ChatEnvironment


def has_generation(environment: Any, text: str) -> tuple[bool, int | None]:
    """Whether a template has `{% generation %}`; and the line of one that is where its place in the text is not known.

    That is inside of what is put together before it is written: a macro, a recursive loop, a `set` or `filter` block.
    """
    import jinja2.nodes as nodes

    holds = (nodes.Macro, nodes.AssignBlock, nodes.FilterBlock, nodes.CallBlock)
    found, hidden = False, None
    waiting: list[tuple[Any, bool]] = [(environment.parse(text), False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, nodes.CallBlock) and isinstance(node.call.node, nodes.ExtensionAttribute):
            found, hidden = True, node.lineno if inside else hidden
        holds_it = isinstance(node, holds) or (isinstance(node, nodes.For) and node.recursive)
        waiting += [(one, inside or holds_it) for one in node.iter_child_nodes()]
    return found, hidden
