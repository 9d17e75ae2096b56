"""A small expression language over the fields of a JSON line, such as `lang == "en" and len(text) > 200`.

It looks like Python and is none: the text is parsed, every part is held against a list of what is allowed, and the
rest is worked out here. Nothing of it is ever run as code.

| what | how |
|---|---|
| a field | its name; `meta.source`, `meta["a key"]`, `tags[0]` lead inside; one that is missing is `None` |
| constants | numbers, texts, `True`, `False`, `None`, lists and tuples of expressions |
| logic | `and`, `or`, `not`, `a if c else b` |
| comparisons | `== != < <= > >=`, `in`, `not in`, also chained |
| numbers | `+ - * / // %`; `+` joins texts too |
| of one value | `len lower upper strip abs round int float str`; `min` and `max` also of several |
| of two texts | `startswith(text, start)`, `endswith(text, end)`, `match(text, pattern)`, which is `re.search` |

The pattern of `match` may be a field too: then it is the data's own. A search may take time that grows with the power
of its text; `filter` ends one that takes more than 10 s for a sample (`EXPRESSION_SECONDS`).

Values that can't be ordered, such as a number and a text, or anything and `None`, do not fit: `<` and its like are
False. Any other operation on a wrong kind of value is an error.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import operator
import re
import signal
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from penstock._naming import nearest
from penstock._secrets import logger
from penstock.errors import ConfigError
from penstock.store.place import Place

_log = logger()
_TICK_S = 1.0


class TookTooLong(Exception):
    pass


class Clock:
    """Position of a loop; set `row` to another number for each sample."""

    __slots__ = ("_seen", "_ticks", "row")

    def __init__(self) -> None:
        self.row = self._seen = -1
        self._ticks = 0

    def tick(self) -> int:
        """Return the number of ticks since the loop moved."""
        self._ticks = self._ticks + 1 if self.row == self._seen else 0
        self._seen = self.row
        return self._ticks


@contextlib.contextmanager
def each_at_most(seconds: float) -> Generator[Clock]:
    """Yield a clock for a loop; a sample that takes longer raises `TookTooLong`.

    A regular expression may backtrack forever on some text. `re` handles signals while it searches, so a timer of the
    process can stop it. It ticks once per second and checks whether the loop moved on, which costs nothing per sample.
    Only the main thread gets signals; in others, or if the process already has a timer, a warning is logged instead.
    """
    clock = Clock()
    if not _can_tick():
        _log.warning(
            "no time limit for regular expressions: not in the main thread, or the process already uses a timer"
        )
        yield clock
        return

    def tick(_number: int, _frame: Any) -> None:
        if clock.tick() * _TICK_S >= seconds:
            raise TookTooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, tick)
    try:
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
        yield clock
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _can_tick() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    # A handler that is not Python's own could not be put back.
    return signal.getitimer(signal.ITIMER_REAL)[0] == 0 and signal.getsignal(signal.SIGALRM) is not None


FieldPath: TypeAlias = tuple[str, ...]
"""Keys that lead to a field: `meta.source` is `("meta", "source")`."""

_SHOWN = 8
_LOOKED_AT = 256  # rows over the whole dataset, before all of them are


def names_in(expression: str) -> set[FieldPath]:
    """Return the fields in an expression, each as far as its keys are constants."""
    return set(_names_in(ast.parse(expression.strip(), mode="eval").body))


def _names_in(node: ast.AST) -> Iterator[FieldPath]:
    path = _path_of(node)
    if path:
        yield path
        return
    for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        yield from _names_in(child)


def require_fields(
    paths: Collection[FieldPath],
    fields_at: Callable[[int], Mapping[str, Any]],
    num_rows: int,
    place: Place,
    *,
    columns: Collection[str] | None = None,
) -> None:
    """Raise `ConfigError`, with the nearest name, for a field that no row has.

    Reads rows across the whole dataset, and all of them in order while a field is missing.

    Args:
        paths: fields to look for.
        fields_at: index of a row → its fields.
        num_rows: number of rows; without rows nothing is checked.
        place: the dataset, for the error.
        columns: the fields of all rows, if they are known: a missing one then costs no reads.
    """
    missing, seen = set(paths), set(columns or ())
    if columns is not None and not {one[0] for one in missing} <= seen:
        raise _no_field({one for one in missing if one[0] not in seen}, seen, place)
    for row in _rows(num_rows):
        if not missing:
            return
        fields = fields_at(row)
        missing = {one for one in missing if not _has(fields, one)}
        if len(seen) < _LOOKED_AT:
            seen.update(_paths_of(fields))
    if missing and num_rows:
        raise _no_field(missing, seen, place)


def _no_field(missing: Collection[FieldPath], seen: Collection[str], place: Place) -> ConfigError:
    name = ".".join(min(missing))
    close = nearest(name, seen)
    known = sorted(seen, key=lambda one: (one.count("."), one))[:_SHOWN]
    return ConfigError(
        "no sample has this field",
        path=place.path,
        found=repr(name),
        expected=f"one of {', '.join(known)}" if known else None,
        hint=f"Did you mean {close!r}?"
        if close
        else None
        if "." in name
        else "Put text in quotes, and write fields without quotes",
    )


def _rows(num_rows: int) -> Iterator[int]:
    if num_rows > _LOOKED_AT:
        yield from np.linspace(0, num_rows - 1, _LOOKED_AT, dtype=np.int64).tolist()
    yield from range(num_rows)


def _path_of(node: ast.AST) -> FieldPath:
    match node:
        case ast.Name():
            return (node.id,)
        case ast.Attribute():
            inside, key = _path_of(node.value), node.attr
        case ast.Subscript(slice=ast.Constant(value=str() as key)):
            inside = _path_of(node.value)
        case _:
            return ()
    return (*inside, key) if inside else ()


def _has(fields: Any, path: FieldPath) -> bool:
    for key in path:
        if not isinstance(fields, Mapping) or key not in fields:
            return False
        fields = fields[key]
    return True


def _paths_of(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{key}" for key in value)


Evaluate = Callable[[Mapping[str, Any]], Any]
"""Fields of a line → the value of an expression."""

MOST_CHARACTERS = 4096
_MOST_DEPTH = 100


def compile_expression(text: str) -> Evaluate:
    """Return a function that evaluates `text` for the fields of one line.

    Raises:
        ConfigError: `text` isn't an expression, or uses a construct that isn't allowed. The returned function raises
            `TypeError`, `ValueError`, `ArithmeticError` or `LookupError` for fields of the wrong kind.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(
            "the expression is too long", found=f"{len(text)} characters", expected=f"at most {MOST_CHARACTERS}"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        hint = "Use == to compare: field == 'text'" if re.search(r"[^=!<>]=[^=]", text) else None
        raise ConfigError(f"syntax error in the expression: {what}", found=text, hint=hint) from None
    return _compile(tree.body, text, 0)


def _compile(node: ast.expr, text: str, depth: int) -> Evaluate:
    if depth > _MOST_DEPTH:
        raise ConfigError("the expression is nested too deeply", found=text)
    inner = functools.partial(_compile, text=text, depth=depth + 1)
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return _constant(node.value)
        case ast.Name():
            return _field(node.id)
        case ast.Attribute():
            return _member(inner(node.value), node.attr)
        case ast.Subscript() if not isinstance(node.slice, ast.Slice):
            return _item(inner(node.value), inner(node.slice))
        case ast.List() | ast.Tuple():
            return _sequence([inner(one) for one in node.elts])
        case ast.BoolOp():
            return _logic([inner(one) for one in node.values], stop_at=isinstance(node.op, ast.Or))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return _unary(inner(node.operand), operator.not_ if isinstance(node.op, ast.Not) else _negated)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return _binary(inner(node.left), inner(node.right), _ARITHMETIC[type(node.op)])
        case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
            sides = [inner(one) for one in (node.left, *node.comparators)]
            return _comparison(sides, [_COMPARISONS[type(op)] for op in node.ops])
        case ast.IfExp():
            return _choice(inner(node.test), inner(node.body), inner(node.orelse))
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in _FUNCTIONS:
            return _call(name, [inner(one) for one in node.args], node.args, text)
        case _:
            raise _refusal(node, text)


# --- the parts -----------------------------------------------------------------------------------------------------


def _constant(value: Any) -> Evaluate:
    return lambda fields: value


def _field(name: str) -> Evaluate:
    return lambda fields: fields.get(name)


def _member(inside: Evaluate, name: str) -> Evaluate:
    def evaluate(fields: Mapping[str, Any]) -> Any:
        value = inside(fields)
        return value.get(name) if isinstance(value, dict) else None

    return evaluate


def _item(inside: Evaluate, key: Evaluate) -> Evaluate:
    def evaluate(fields: Mapping[str, Any]) -> Any:
        value, wanted = inside(fields), key(fields)
        if isinstance(value, dict):
            return value.get(wanted) if isinstance(wanted, str) else None
        if isinstance(value, list | str) and _is_integer(wanted):
            return value[wanted] if -len(value) <= wanted < len(value) else None
        return None

    return evaluate


def _sequence(parts: list[Evaluate]) -> Evaluate:
    return lambda fields: [part(fields) for part in parts]


def _logic(parts: list[Evaluate], *, stop_at: bool) -> Evaluate:
    def evaluate(fields: Mapping[str, Any]) -> Any:
        value = None
        for part in parts:
            value = part(fields)
            if bool(value) is stop_at:
                break
        return value

    return evaluate


def _unary(part: Evaluate, function: Callable[[Any], Any]) -> Evaluate:
    return lambda fields: function(part(fields))


def _binary(left: Evaluate, right: Evaluate, function: Callable[[Any, Any], Any]) -> Evaluate:
    return lambda fields: function(left(fields), right(fields))


def _comparison(sides: list[Evaluate], tests: list[Callable[[Any, Any], bool]]) -> Evaluate:
    def evaluate(fields: Mapping[str, Any]) -> bool:
        left = sides[0](fields)
        for side, test in zip(sides[1:], tests, strict=True):
            right = side(fields)
            if not test(left, right):
                return False
            left = right
        return True

    return evaluate


def _choice(test: Evaluate, yes: Evaluate, no: Evaluate) -> Evaluate:
    return lambda fields: yes(fields) if test(fields) else no(fields)


def _call(name: str, parts: list[Evaluate], arguments: list[ast.expr], text: str) -> Evaluate:
    function, least, most = _FUNCTIONS[name]
    if not least <= len(parts) <= most:
        expected = f"{least}" if least == most else f"{least} or more"
        raise ConfigError(f"{name} with {len(parts)} arguments", found=text, expected=expected)
    if name == "match" and isinstance(arguments[1], ast.Constant):
        pattern = compile_pattern(str(arguments[1].value))
        return lambda fields: pattern.search(_text(parts[0](fields))) is not None
    return lambda fields: function(*[part(fields) for part in parts])


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a compiled regular expression; raise `ConfigError` if it is invalid."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"not a regular expression: {error}", found=pattern) from None


def _refusal(node: ast.expr, text: str) -> ConfigError:
    found = ast.get_source_segment(text.strip(), node) or text
    hint = f"Functions: {', '.join(_FUNCTIONS)}" if isinstance(node, ast.Call) else None
    return ConfigError("not allowed in an expression", found=found, hint=hint)


# --- what operations do --------------------------------------------------------------------------------------------


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    raise TypeError(f"{_shown(value)} is not a number")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"{_shown(value)} is not a string")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _numeric(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    # Texts are left out on purpose: "a" * 10**9 and "%99999999d" % 1 would take all memory.
    return lambda left, right: function(_number(left), _number(right))


def _negated(value: Any) -> Any:
    return -_number(value)


def _sum(left: Any, right: Any) -> Any:
    return left + right if isinstance(left, str) and isinstance(right, str) else _number(left) + _number(right)


def _ordered(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compare(left: Any, right: Any) -> bool:
        try:
            return bool(function(left, right))
        except TypeError:
            return False

    return compare


def _is_in(left: Any, right: Any) -> bool:
    if isinstance(right, str):
        return isinstance(left, str) and left in right
    if isinstance(right, dict):
        return isinstance(left, str) and left in right
    return isinstance(right, list) and left in right


def _length(value: Any) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise TypeError(f"{_shown(value)} has no length")


def _on_texts(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*map(_text, values))


def _on_number(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: function(_number(value))


def _matches(text: str, pattern: str) -> bool:
    return compile_pattern(pattern).search(text) is not None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(_number(value))


def _extreme(function: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def evaluate(*values: Any) -> Any:
        given = values[0] if len(values) == 1 and isinstance(values[0], list) else list(values)
        return function([_number(value) for value in given])

    return evaluate


def _integer(value: Any) -> int:
    return int(value if isinstance(value, str) else _number(value))


def _real(value: Any) -> float:
    return float(value if isinstance(value, str) else _number(value))


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: _sum,
    ast.Sub: _numeric(operator.sub),
    ast.Mult: _numeric(operator.mul),
    ast.Div: _numeric(operator.truediv),
    ast.FloorDiv: _numeric(operator.floordiv),
    ast.Mod: _numeric(operator.mod),
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
    ast.In: _is_in,
    ast.NotIn: lambda left, right: not _is_in(left, right),
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "len": (_length, 1, 1),
    "lower": (_on_texts(str.lower), 1, 1),
    "upper": (_on_texts(str.upper), 1, 1),
    "strip": (_on_texts(str.strip), 1, 1),
    "abs": (_on_number(abs), 1, 1),
    "min": (_extreme(min), 1, 99),
    "max": (_extreme(max), 1, 99),
    "round": (_on_number(round), 1, 1),
    "int": (_integer, 1, 1),
    "float": (_real, 1, 1),
    "str": (_as_text, 1, 1),
    "startswith": (_on_texts(str.startswith), 2, 2),
    "endswith": (_on_texts(str.endswith), 2, 2),
    "match": (_on_texts(_matches), 2, 2),
}
"""Name → what it does, and how many arguments it takes at least and at most."""
