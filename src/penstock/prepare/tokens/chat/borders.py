"""Borders of messages in a rendered conversation, from one rendering instead of one per message.

Most templates are one loop over the messages, in which each round writes one message and doesn't look at later ones.
Then the rendering of the first messages is the beginning of the rendering of all, and ends where the next round begins.
`make_bordered` rewrites such a template to record these offsets. Every expression by which a round could know of later
messages, such as `loop.last` or another use of `messages`, is wrapped: if a conversation reaches it, the borders are
invalid, and the caller renders the beginnings one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MESSAGES = "messages"
PROMPT = "add_generation_prompt"
_LOOKS_BACK = frozenset(("first", "index", "index0", "depth", "depth0", "previtem", "changed", "cycle"))
"""Attributes of `loop` that don't depend on later messages."""


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
    import jinja2.nodes as nodes

    tree = environment.parse(text)
    prompts = _take_prompts(tree)
    loops = [at for at, node in enumerate(tree.body) if isinstance(node, nodes.For) and _is_name(node.iter)]
    if prompts is None or not loops:
        return None
    at = loops[-1]
    loop = tree.body[at]
    if loop.recursive or loop.test is not None or loop.else_ or not all(map(_is_silent, tree.body[at + 1 :])):
        return None
    aliases = _aliases(tree.body[:at])
    if loop.iter.name not in aliases:
        return None
    prompt = _prompt(environment, tree, loop, prompts)
    wrapped = _Wrapped(environment, tree, loop, aliases)
    wrapped.visit_all()
    loop.iter = _filter(environment, "_rounds", loop.iter)
    return Bordered(_compile(environment, tree), prompt)


def _compile(environment: Any, tree: Any) -> Any:
    return environment.template_class.from_code(environment, environment.compile(tree), environment.make_globals(None))


def _filter(environment: Any, name: str, node: Any) -> Any:
    import jinja2.nodes as nodes

    found = nodes.Filter(node, name, [], [], None, None)
    found.set_environment(environment)
    return found.set_lineno(node.lineno)


def _is_name(node: Any, name: str | None = None) -> bool:
    import jinja2.nodes as nodes

    return isinstance(node, nodes.Name) and node.ctx == "load" and name in (None, node.name)


def _is_silent(node: Any) -> bool:
    """Return whether a node writes nothing."""
    import jinja2.nodes as nodes

    return isinstance(node, nodes.Output) and all(
        isinstance(one, nodes.TemplateData) and not one.data for one in node.nodes
    )


def _take_prompts(tree: Any) -> list[tuple[Any, list[Any], list[Any]]] | None:
    """Remove the branches of the prompt; return for each its list, its conditions and its body.

    None if such a branch has an `elif`.
    """
    import jinja2.nodes as nodes

    found: list[tuple[Any, list[Any], list[Any]]] = []
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
    import jinja2.nodes as nodes

    return _conjuncts(test.left) + _conjuncts(test.right) if isinstance(test, nodes.And) else [test]


def _aliases(prelude: Sequence[Any]) -> set[str]:
    """Return the names of the messages, or of all but the first ones, before the loop."""
    import jinja2.nodes as nodes

    found = {MESSAGES}
    for _ in range(2):
        for node in prelude:
            assigns = [node] if isinstance(node, nodes.Assign) else list(node.find_all(nodes.Assign))
            found |= {
                one.target.name for one in assigns if isinstance(one.target, nodes.Name) and _rest(one.node, found)
            }
    return found


def _rest(node: Any, aliases: set[str]) -> Any:
    """Return the name in `NAME` or `NAME[1:]`, if it is one of the aliases; else None."""
    import jinja2.nodes as nodes

    named: Any = node
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        part, named = node.arg, node.node
        starts_late = (
            isinstance(part.start, nodes.Const) and isinstance(part.start.value, int) and part.start.value >= 0
        )
        if not starts_late or part.stop is not None or part.step is not None:
            return None
    return named if _is_name(named) and named.name in aliases else None


def _prompt(environment: Any, tree: Any, loop: Any, prompts: list[tuple[Any, list[Any], list[Any]]]) -> Any:
    """Return a template of the branches of the prompt; None if they depend on the messages."""
    import jinja2.nodes as nodes

    if any(_is_name(node, PROMPT) for node in tree.find_all(nodes.Name)):
        return None
    assigned = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"} | {MESSAGES, "loop"}
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
    names = whole.find_all((nodes.Name, nodes.NSRef, nodes.Macro, nodes.Block, nodes.CallBlock))
    if any(not isinstance(one, nodes.Name) or one.ctx != "load" or one.name in assigned for one in names):
        return None
    return _compile(environment, whole)


def _ends(body: Sequence[Any]) -> bool:
    """Return whether a loop writes nothing after the removed branch."""
    import jinja2.nodes as nodes

    removed = [at for at, node in enumerate(body) if isinstance(node, nodes.Output) and not node.nodes]
    return len(removed) == 1 and all(map(_is_silent, body[removed[0] :]))


class _Wrapped:
    """Wraps each expression by which a round could know of later messages."""

    def __init__(self, environment: Any, tree: Any, loop: Any, aliases: set[str]) -> None:
        import jinja2.nodes as nodes

        self._wrap = functools.partial(_filter, environment, "_ahead")
        self._nodes, self._tree, self._loop, self._aliases = nodes, tree, loop, aliases
        stored = (node.name for node in tree.find_all(nodes.Name) if node.ctx != "load")
        self._first_stays = MESSAGES not in set(stored)
        self._allowed: set[int] = {id(loop.iter)}
        self._inner: set[int] = set()

    def visit_all(self) -> None:
        """Rewrite the template."""
        nodes = self._nodes
        before = self._tree.body[: self._tree.body.index(self._loop)]
        for node in before:
            assigns = [node] if isinstance(node, nodes.Assign) else list(node.find_all(nodes.Assign))
            self._allowed |= {
                id(name)
                for one in assigns
                if isinstance(one.target, nodes.Name) and (name := _rest(one.node, self._aliases)) is not None
            }
        for item in self._tree.find_all(nodes.Getitem):
            first = isinstance(item.arg, nodes.Const) and type(item.arg.value) is int and item.arg.value == 0
            if self._first_stays and first and _is_name(item.node, MESSAGES):
                self._allowed.add(id(item.node))
        for attribute in self._tree.find_all(nodes.Getattr):
            if _is_name(attribute.node, "loop") and attribute.attr in _LOOKS_BACK:
                self._allowed.add(id(attribute.node))
        for inner in self._tree.find_all(nodes.For):
            if inner is not self._loop:  # whose body has a `loop` of its own
                self._inner |= {id(name) for one in inner.body for name in self._names(one)}
        self._visit(self._tree)

    def _names(self, node: Any) -> list[Any]:
        return [node] if isinstance(node, self._nodes.Name) else list(node.find_all(self._nodes.Name))

    def _visit(self, node: Any) -> None:
        for name, value in node.iter_fields():
            if isinstance(value, list):
                for at, one in enumerate(value):
                    if isinstance(one, self._nodes.Node):
                        value[at] = self._wrapped(one)
            elif isinstance(value, self._nodes.Node):
                setattr(node, name, self._wrapped(value))

    def _wrapped(self, node: Any) -> Any:
        self._visit(node)
        if not _is_name(node) or id(node) in self._allowed:
            return node
        is_ahead = node.name in self._aliases or (node.name == "loop" and id(node) not in self._inner)
        return self._wrap(node) if is_ahead else node
