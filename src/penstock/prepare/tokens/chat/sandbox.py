"""The jinja2 environment of chat templates: that of transformers, in which a template of anybody's ends soon.

`ImmutableSandboxedEnvironment` with trimmed blocks, loop controls, `{% generation %}`, `tojson`, `raise_exception` and
`strftime_now`. The sandbox keeps a template from attributes and calls that are not its own. Besides, loops, calls and
what `range` gives are steps, which are counted, and so is the length of what is made, read or compared: their number
does not depend on the machine, as a time would. Nothing that a template makes may be longer than a bound (`bounds`).
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from penstock._optional import require
from penstock.errors import ConfigError
from penstock.prepare.tokens.chat.bounds import (
    TooMuchError,
    require_between,
    require_filter,
    require_length,
    require_narrow,
    require_number,
    require_operation,
    require_range,
    weigh,
)

EXTRA = "chat"
_CHARS_A_STEP = 256
_VALUES_A_STEP = 16
_SLOW = frozenset(("wordwrap", "urlize", "striptags", "wordcount", "pprint", "xmlattr"))
"""Filters that take about a step a character."""
_COMPARING = frozenset(("sort", "unique", "min", "max", "groupby", "dictsort", "sum"))
_BY_LUCK = ("lipsum", "random")
"""What jinja2 has and an output's bytes may not depend on."""


class TemplateRefusesError(Exception):
    """What a template says by `raise_exception`."""


@dataclass(slots=True)
class Meter:
    """What one rendering may still do, and which of its text is generated.

    Attributes:
        left: steps.
        written: characters of the text so far.
        spans: first and last + 1 character of what stood in `{% generation %}`, and its text.
        looped: the messages that a bordered template looped over; `borders` is where each of their rounds began.
        looked_ahead: a round may have known of later messages.
    """

    left: int = 0
    written: int = 0
    spans: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    looped: Any = ()
    borders: list[int] = field(default_factory=list[int])
    looked_ahead: bool = False

    def begin(self, steps: int) -> None:
        """Let one rendering take so many steps."""
        self.left, self.written = steps, 0
        self.spans.clear()
        self.looped, self.borders, self.looked_ahead = (), [], False

    def rounds(self, values: Any) -> Iterator[Any]:
        """The same messages, a step each, with the place in the text where each round begins."""
        self.looped = values
        for value in values:
            self.step()
            self.borders.append(self.written)
            yield value

    def ahead(self, value: Any) -> Any:
        """The same value, which may tell of later messages."""
        self.looked_ahead = True
        return value

    def step(self, count: int = 1) -> None:
        """Take steps; raises `TooMuchError`."""
        self.left -= count
        if self.left < 0:
            raise TooMuchError("the template takes too many steps, so it may loop forever")

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """The same values, a step each."""
        is_made = isinstance(values, Iterator)  # as it goes: what a list holds was measured with it
        for value in values:
            self.step()
            yield self.sized(value) if is_made else value

    def sized(self, value: Any) -> Any:
        """A value that was made, or is to be compared, unless it is too long."""
        if isinstance(value, str | bytes | list | tuple | dict):
            length, looked = weigh(value)
            require_length(length)
            self.step(length // _CHARS_A_STEP + looked // _VALUES_A_STEP)
        elif isinstance(value, int):
            require_number(value)
        elif isinstance(value, Iterator):
            return self.counted(cast(Iterator[Any], value))
        return value

    def compared(self, name: str, test: Callable[..., Any]) -> Callable[..., Any]:
        """The test; one of two values takes as long as they are."""
        if name != "in" and getattr(test, "__module__", "") != "_operator":
            return test
        return lambda *args: test(*map(self.sized, args))

    def read(self, name: str, values: Iterable[Any]) -> None:
        """Take the steps of a filter or method that looks at all of these."""
        for value in values:
            if isinstance(value, str | bytes | list | tuple | dict):
                deep = name in _SLOW or name in _COMPARING
                self.step((weigh(value)[0] if deep else len(value)) // (1 if name in _SLOW else _CHARS_A_STEP))

    def concat(self, parts: Iterable[str]) -> str:
        """One text of these."""
        found, length = list[str](), 0
        for part in parts:
            length += len(part)
            require_length(length)
            found.append(part)
        return self.sized("".join(found))

    def range(self, *args: int) -> range:
        """What `range` gives, a step each."""
        found = range(*args)
        require_range(len(found))
        self.step(len(found))
        return found

    def generated(self, caller: Callable[[], str]) -> str:
        """The text of a `{% generation %}`, whose place is noted."""
        text = caller()
        self.spans.append((self.written, text))
        return text


def _require_call(obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """That a method of a text or number gives none that is too long, before it does."""
    method = getattr(obj, "__wrapped__", obj)
    of, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if isinstance(of, str | bytes | int):
        require_filter(name, (of, *args), kwargs)


def make_environment(meter: Meter, date: str | None) -> Any:
    """The environment of all renderings that are counted by `meter`; not thread-safe."""
    require("jinja2", extra=EXTRA)
    environment = _environment_class()(meter)
    for name in _BY_LUCK:
        environment.globals.pop(name, None)
        environment.filters.pop(name, None)
    environment.globals.update(
        namespace=_namespace_class(),
        raise_exception=_raise_exception,
        strftime_now=functools.partial(_strftime, date),
        range=meter.range,
    )
    return environment


def _raise_exception(message: Any = "") -> NoReturn:
    raise TemplateRefusesError(str(message))


def _strftime(date: str | None, format: str) -> str:
    if date is None:
        raise ConfigError(
            "the chat template uses the current date, which would make the output depend on the day",
            hint="Set the date: chat_date= (--chat-date YYYY-MM-DD)",
        )
    require_narrow(format)
    return datetime.datetime.fromisoformat(date).strftime(format)


def _tojson(
    meter: Meter,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where jinja2's own filter escapes what HTML would."""
    require_between(indent, *separators or ())
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return encoder.encode(value) if indent is None else meter.concat(encoder.iterencode(value))


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

    def is_short(node: Any) -> bool:
        return isinstance(node, nodes.Const) or (
            isinstance(node, nodes.List | nodes.Tuple) and all(isinstance(one, nodes.Const) for one in node.items)
        )

    class Guards(NodeTransformer):
        def visit_For(self, node: Any) -> Any:
            self.generic_visit(node)
            is_counted = isinstance(node.iter, nodes.Filter) and node.iter.name == "_rounds"
            node.iter = node.iter if is_counted else through("_counted", node.iter)
            return node

        def visit_Concat(self, node: Any) -> Any:
            self.generic_visit(node)
            parts = nodes.List(node.nodes)
            parts.set_environment(node.environment)
            return through("_joined", parts.set_lineno(node.lineno))

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            return through("_sized", node) if isinstance(node.arg, nodes.Slice) else node

        def visit_List(self, node: Any) -> Any:
            self.generic_visit(node)
            return node if is_short(node) or getattr(node, "ctx", "load") == "store" else through("_sized", node)

        visit_Tuple = visit_Dict = visit_List

        def visit_Compare(self, node: Any) -> Any:
            self.generic_visit(node)
            left = node.expr
            for one in node.ops:
                left, before = one.expr, left
                if not is_short(left) and (one.op in ("in", "notin") or not is_short(before)):
                    one.expr = through("_sized", left)
            return node

    return Guards()


@functools.cache
def _namespace_class() -> Any:
    """A namespace whose text is short: what it holds is put into it after it was made, and may be another one twice."""
    from jinja2.utils import Namespace

    class ChatNamespace(Namespace):
        def __repr__(self) -> str:
            return "<Namespace>"

    return ChatNamespace


@functools.cache
def _environment_class() -> Any:
    """The class, which needs jinja2."""
    from jinja2.ext import loopcontrols
    from jinja2.runtime import markup_join
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class ChatEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def __init__(self, meter: Meter) -> None:
            extensions = [_generation(), loopcontrols]
            super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
            self.meter = meter
            self.concat = meter.concat
            self.tests = {name: meter.compared(name, one) for name, one in self.tests.items()}
            self.filters = {name: self._guarded(name, one) for name, one in self.filters.items()}
            self.filters |= {
                "tojson": functools.partial(_tojson, meter),
                "_counted": meter.counted,
                "_rounds": meter.rounds,
                "_ahead": meter.ahead,
                "_sized": meter.sized,
                "_joined": self._joined,
            }

        def _generate(self, source: Any, *args: Any, **kwargs: Any) -> Any:
            return super()._generate(_guards().visit(source), *args, **kwargs)

        def handle_exception(self, source: str | None = None) -> NoReturn:
            raise  # a traceback as the template's own lines takes long where that went deep

        def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            if getattr(obj, "__name__", "") == "join":
                args = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
            _require_call(obj, args, kwargs)
            self.meter.read("", (getattr(obj, "__self__", None), *args))
            return self.meter.sized(super().call(context, obj, *args, **kwargs))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "+" and type(left) is str and type(right) is str:  # the common case, by the same rules
                length = len(left) + len(right)
                require_length(length)
                self.meter.step(length // _CHARS_A_STEP)
                return left + right
            require_operation(operator, left, right)
            return self.meter.sized(self.binop_table[operator](left, right))

        def _joined(self, parts: Iterable[Any]) -> Any:
            return self.meter.sized(markup_join(parts))

        def _guarded(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(plain)  # with what it wants to be given first
            def guarded(*args: Any, **kwargs: Any) -> Any:
                first = 1 if hasattr(plain, "jinja_pass_arg") else 0
                if name == "join" and isinstance(args[first], Iterator):
                    args = (*args[:first], list(args[first]), *args[first + 1 :])
                require_filter("%" if name == "format" else name, args[first:], kwargs)
                self.meter.step()
                self.meter.read(name, args[first : first + 1])
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
