"""jinja2 environment of chat templates: that of transformers, with limits, since templates are untrusted.

`ImmutableSandboxedEnvironment` with trimmed blocks, loop controls, `{% generation %}`, `tojson`, `raise_exception` and
`strftime_now`. The sandbox keeps a template from attributes and calls outside it. In addition, loops, calls and values
of `range` are counted as steps, and so are the lengths of values that are made, read or compared. Unlike a time limit,
this doesn't depend on the machine. Values longer than a limit aren't made: their length is computed first. This module
imports jinja2.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import jinja2.ext
from jinja2 import nodes
from jinja2.runtime import markup_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from penstock.errors import ConfigError

MOST_CHARS = 1 << 26
"""Limit of a text, and of all texts in a list, each as often as it occurs."""
_MOST_NUMBER = 1_000_000
_MOST_BITS = 1 << 14
_MOST_BETWEEN = 64
_NUMBER = re.compile(r"\d+")
_WIDTH = re.compile(r"\d{7}")
_GIVEN_WIDTH = re.compile(r"%[-+ #0]*(?:\d*\.)?\*")
_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "wordwrap"))
_ENCODINGS = frozenset(("utf-8", "utf8", "utf-16", "utf-32", "ascii", "latin-1"))
_HOLDING: Any = (dict, list, tuple)


class TooMuchError(Exception):
    """The template exceeds its limits."""


def require_length(length: int) -> None:
    if length > MOST_CHARS:
        raise TooMuchError("the template produces too much text")


def require_narrow(text: str) -> None:
    if _WIDTH.search(text):
        raise TooMuchError("the template pads text too far")


def weigh(value: Any) -> tuple[int, int]:
    """Return the approximate length of a value as text, and the number of values visited for it.

    A list that occurs twice counts twice, and is visited once.
    """
    if isinstance(value, str | bytes):
        return len(value), 0
    known, looked, waiting = dict[int, int](), 0, [value] if isinstance(value, _HOLDING) else []
    while waiting:
        one = waiting[-1]
        parts = [*one, *one.values()] if isinstance(one, dict) else one
        looked += len(parts)
        unknown = {id(part): part for part in parts if isinstance(part, _HOLDING) and id(part) not in known}
        if unknown and id(one) not in known:
            waiting += unknown.values()
            continue
        held = (len(part) + 2 if isinstance(part, str | bytes) else known.get(id(part), 2) for part in parts)
        known[id(one)] = min(sum(held) + 2, MOST_CHARS + 1)
        waiting.pop()
    return known.get(id(value), 1), looked


def require_filter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `TooMuchError` if a filter or method of the first of `args` would return something too long."""
    given = [*args[1:], *kwargs.values()]
    text = args[0] if args and isinstance(args[0], str | bytes) else None
    numbers = any(isinstance(one, int) and abs(one) > _MOST_NUMBER for one in given)
    if name in ("to_bytes", "from_bytes") or (numbers and name in _PADDING):
        raise TooMuchError("the template pads text too far")
    if name in ("encode", "decode") and any(one not in _ENCODINGS for one in given[:1]):
        raise TooMuchError("the template uses an encoding that isn't allowed")
    if name == "sum" and any(isinstance(one, _HOLDING) for one in given):
        raise TooMuchError("the template sums lists")
    if name == "join":
        require_length(_joined(args, given))
    elif name in _GROWING and text is not None:
        require_length(_GROWING[name](text, given))


def require_operation(operator: str, left: Any, right: Any) -> None:
    if operator == "*":
        for many, count in ((left, right), (right, left)):
            if isinstance(many, str | bytes | list | tuple) and isinstance(count, int):
                require_length(len(many) * max(0, count))
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(0, right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MOST_BITS:
            raise TooMuchError("the template computes a number that is too large")
    if operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        require_length(len(left) + len(right))
    if operator == "%" and isinstance(left, str | bytes):
        require_length(_percent(left, list(right) if isinstance(right, tuple) else [right]))


def _joined(args: tuple[Any, ...], given: list[Any]) -> int:
    parts = [one for one in (*args[:1], *given) if isinstance(one, _HOLDING)]
    between = sum(len(one) for one in (*args[:1], *given) if isinstance(one, str | bytes))
    return sum(weigh(one)[0] + len(one) * between for one in parts) or weigh(args[0])[0] * (1 + between)


def _largest(given: list[Any]) -> int:
    return max((weigh(one)[0] for one in given), default=0)


def _percent(text: Any, given: list[Any]) -> int:
    shown = text.decode("latin-1") if isinstance(text, bytes) else text
    require_narrow(shown)
    if _GIVEN_WIDTH.search(shown.replace("%%", "")):
        raise TooMuchError("the template pads text too far")
    widest = max(map(int, _NUMBER.findall(shown)), default=0)
    return len(shown) + shown.count("%") * max(widest, _largest(given))


def _fields(text: Any, given: list[Any]) -> int:
    require_narrow(text)
    length, largest = len(text), _largest(given)
    try:
        for _, _, spec, _ in string.Formatter().parse(text):
            if spec is not None:
                if "{" in spec:
                    raise TooMuchError("the template pads text too far")
                length += max(largest, *map(int, _NUMBER.findall(spec)), 0)
    except ValueError:  # not a format: the call raises the error
        pass
    return length


def _tabs(text: Any, given: list[Any]) -> int:
    width = next((one for one in given if isinstance(one, int)), 8)
    return len(text) + text.count("\t" if isinstance(text, str) else b"\t") * max(0, width)


def _replaced(text: Any, given: list[Any]) -> int:
    old, new = (*given, "", "")[:2]
    if not isinstance(new, str | bytes):
        return len(text)
    found = text.count(old) if isinstance(old, type(text)) and old else len(text) + 1
    return len(text) + found * len(new)


def _translated(text: Any, given: list[Any]) -> int:
    tables = [one for one in given if isinstance(one, dict)]
    return len(text) * max([1, *(len(one) for table in tables for one in table.values() if isinstance(one, str))])


def _indented(text: Any, given: list[Any]) -> int:
    width = next((one for one in given if isinstance(one, int | str)), 4)
    return len(text) + (text.count("\n") + 1) * (len(width) if isinstance(width, str) else width)


def _with_texts(text: Any, given: list[Any]) -> int:
    return len(text) * (1 + sum(len(one) for one in given if isinstance(one, str)))


_GROWING: dict[str, Callable[[Any, list[Any]], int]] = {
    "%": _percent,
    "format": _fields,
    "format_map": _fields,
    "expandtabs": _tabs,
    "replace": _replaced,
    "translate": _translated,
    "indent": _indented,
    "wordwrap": _with_texts,
    "urlize": _with_texts,
}


def require_between(*texts: Any) -> None:
    for one in texts:
        if one is not None and (one if isinstance(one, int) else len(one)) > _MOST_BETWEEN:
            raise TooMuchError("the template pads text too far")


_CHARS_A_STEP = 256
_VALUES_A_STEP = 16
_SLOW = frozenset(("wordwrap", "urlize", "striptags", "wordcount", "pprint", "xmlattr"))
"""Filters that take about a step per character."""
_COMPARING = frozenset(("sort", "unique", "min", "max", "groupby", "dictsort", "sum"))
_BY_LUCK = ("lipsum", "random")
"""Random values of jinja2, on which an output must not depend."""


class TemplateRefusesError(Exception):
    """Error that a template raises by `raise_exception`."""


@dataclass(slots=True)
class Meter:
    """Limits of one rendering, and its generated text.

    Attributes:
        left: remaining steps.
        written: characters of the text so far.
        spans: first character and text of each `{% generation %}` block.
        looped: messages that a bordered template looped over; `borders`: where each round began.
        looked_ahead: a round may have known of later messages.
    """

    left: int = 0
    written: int = 0
    spans: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    looped: Any = ()
    borders: list[int] = field(default_factory=list[int])
    looked_ahead: bool = False

    def begin(self, steps: int) -> None:
        self.left, self.written = steps, 0
        self.spans.clear()
        self.looped, self.borders, self.looked_ahead = (), [], False

    def rounds(self, values: Any) -> Iterator[Any]:
        """Yield the messages, a step each, and record where each round begins."""
        self.looped = values
        for value in values:
            self.step()
            self.borders.append(self.written)
            yield value

    def ahead(self, value: Any) -> Any:
        self.looked_ahead = True
        return value

    def step(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise TooMuchError("the template takes too many steps, so it may loop forever")

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        is_made = isinstance(values, Iterator)  # lazily; items of a list were measured with it
        for value in values:
            self.step()
            yield self.sized(value) if is_made else value

    def sized(self, value: Any) -> Any:
        """Return a new or compared value, unless it is too long."""
        if isinstance(value, str | bytes | list | tuple | dict):
            length, looked = weigh(value)
            require_length(length)
            self.step(length // _CHARS_A_STEP + looked // _VALUES_A_STEP)
        elif isinstance(value, int):
            if value.bit_length() > _MOST_BITS:
                raise TooMuchError("the template computes a number that is too large")
        elif isinstance(value, Iterator):
            return self.counted(cast(Iterator[Any], value))
        return value

    def compared(self, name: str, test: Callable[..., Any]) -> Callable[..., Any]:
        """Return a test. One that compares two values takes steps by their length."""
        if name != "in" and getattr(test, "__module__", "") != "_operator":
            return test
        return lambda *args: test(*map(self.sized, args))

    def read(self, name: str, values: Iterable[Any]) -> None:
        """Take the steps of a filter or method that reads all these values."""
        for value in values:
            if isinstance(value, str | bytes | list | tuple | dict):
                deep = name in _SLOW or name in _COMPARING
                self.step((weigh(value)[0] if deep else len(value)) // (1 if name in _SLOW else _CHARS_A_STEP))

    def concat(self, parts: Iterable[str]) -> str:
        found, length = list[str](), 0
        for part in parts:
            length += len(part)
            require_length(length)
            found.append(part)
        return self.sized("".join(found))

    def range(self, *args: int) -> range:
        found = range(*args)
        if len(found) > _MOST_NUMBER:
            raise TooMuchError("the template uses a range that is too long")
        self.step(len(found))
        return found

    def generated(self, caller: Callable[[], str]) -> str:
        text = caller()
        self.spans.append((self.written, text))
        return text


def _require_call(obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `TooMuchError` before a method of a text or number returns something too long."""
    method = getattr(obj, "__wrapped__", obj)
    of, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    if isinstance(of, str | bytes | int):
        require_filter(name, (of, *args), kwargs)


def make_environment(meter: Meter, date: str | None) -> Any:
    """Return the environment of all renderings with `meter`. Not thread-safe."""
    environment: Any = _ChatEnvironment(meter)
    for name in _BY_LUCK:
        environment.globals.pop(name, None)
        environment.filters.pop(name, None)
    environment.globals.update(
        namespace=_ChatNamespace,
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
    """Return JSON, without the HTML escapes of jinja2's own filter."""
    require_between(indent, *separators or ())
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return encoder.encode(value) if indent is None else meter.concat(encoder.iterencode(value))


class _Generation(jinja2.ext.Extension):
    tags = {"generation"}  # noqa: RUF012 (a class variable)

    def parse(self, parser: Any) -> Any:
        number = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("generated"), [], [], body).set_lineno(number)

    def generated(self, caller: Any) -> str:
        return cast(Any, self.environment).meter.generated(caller)


def apply_filter(name: str, node: Any) -> Any:
    found = nodes.Filter(node, name, [], [], None, None)
    found.set_environment(node.environment)
    return found.set_lineno(node.lineno)


def _is_short(node: Any) -> bool:
    return isinstance(node, nodes.Const) or (
        isinstance(node, nodes.List | nodes.Tuple) and all(isinstance(one, nodes.Const) for one in node.items)
    )


class _Guards(NodeTransformer):
    """Rewrites parsed templates: rounds of loops are counted, and combined texts measured."""

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        is_counted = isinstance(node.iter, nodes.Filter) and node.iter.name == "_rounds"
        node.iter = node.iter if is_counted else apply_filter("_counted", node.iter)
        return node

    def visit_Concat(self, node: Any) -> Any:
        self.generic_visit(node)
        parts = nodes.List(node.nodes)
        parts.set_environment(node.environment)
        return apply_filter("_joined", parts.set_lineno(node.lineno))

    def visit_Getitem(self, node: Any) -> Any:
        self.generic_visit(node)
        return apply_filter("_sized", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: Any) -> Any:
        self.generic_visit(node)
        return node if _is_short(node) or getattr(node, "ctx", "load") == "store" else apply_filter("_sized", node)

    visit_Tuple = visit_Dict = visit_List

    def visit_Compare(self, node: Any) -> Any:
        self.generic_visit(node)
        left = node.expr
        for one in node.ops:
            left, before = one.expr, left
            if not _is_short(left) and (one.op in ("in", "notin") or not _is_short(before)):
                one.expr = apply_filter("_sized", left)
        return node


class _ChatNamespace(Namespace):
    """A namespace with a short text: its values are set after it was measured, and can nest."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _ChatEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, meter: Meter) -> None:
        extensions = [_Generation, jinja2.ext.loopcontrols]
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
        return super()._generate(_Guards().visit(source), *args, **kwargs)

    def handle_exception(self, *_: Any, **__: Any) -> NoReturn:
        raise  # a traceback by the template's lines is slow after deep recursion

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.meter.step()
        if getattr(obj, "__name__", "") == "join":
            args = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
        _require_call(obj, args, kwargs)
        self.meter.read("", (getattr(obj, "__self__", None), *args))
        return self.meter.sized(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is str and type(right) is str:  # fast path with the same rules
            length = len(left) + len(right)
            require_length(length)
            self.meter.step(length // _CHARS_A_STEP)
            return left + right
        require_operation(operator, left, right)
        return self.meter.sized(self.binop_table[operator](left, right))

    def _joined(self, parts: Iterable[Any]) -> Any:
        return self.meter.sized(markup_join(parts))

    def _guarded(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)  # with its `jinja_pass_arg`
        def guarded(*args: Any, **kwargs: Any) -> Any:
            first = 1 if hasattr(plain, "jinja_pass_arg") else 0
            if name == "join" and isinstance(args[first], Iterator):
                args = (*args[:first], list(args[first]), *args[first + 1 :])
            require_filter("%" if name == "format" else name, args[first:], kwargs)
            self.meter.step()
            self.meter.read(name, args[first : first + 1])
            return self.meter.sized(plain(*args, **kwargs))

        return guarded


def has_generation(environment: Any, text: str) -> tuple[bool, int | None]:
    """Return whether a template has `{% generation %}`, and the line of one whose place in the text is unknown.

    That is one in a block that is captured before it is written: a macro, a recursive loop, a `set` or `filter` block.
    """
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
