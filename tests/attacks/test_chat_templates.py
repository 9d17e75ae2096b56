"""Chat templates that make what no memory holds, or compare for ever: stopped before they do.

Without the guards each of these took all 512 MB, or a core for hours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.internals import ChatTemplate, Conversation, Renderer, UnusableError

pytest.importorskip("jinja2")

_TWICE = "{% set n = namespace(a=['a'], b=['a'], t=('a',)) %}{% for i in range(60) %}"
_LONG = "{% set s = 'a' * 1000000 %}"
_OFTEN = "{% for i in range(20000) %}{{ s }}{% endfor %}"

NESTED = {
    "printed": f"{_TWICE}{{% set n.a = [n.a, n.a] %}}{{% endfor %}}{{{{ n.a }}}}",
    "as JSON": f"{_TWICE}{{% set n.a = [n.a, n.a] %}}{{% endfor %}}{{{{ n.a | tojson }}}}",
    "joined": f"{_TWICE}{{% set n.a = [n.a, n.a] %}}{{% endfor %}}{{{{ n.a | join }}}}",
    "put together": f"{_TWICE}{{% set n.a = [n.a, n.a] %}}{{% endfor %}}{{{{ n.a ~ '' }}}}",
    "objects": f"{_TWICE}{{% set n.a = {{'a': n.a, 'b': n.a}} %}}{{% endfor %}}{{{{ n.a }}}}",
    "by dict": f"{_TWICE}{{% set n.a = dict(a=n.a, b=n.a) %}}{{% endfor %}}{{{{ n.a }}}}",
    "by +": f"{_TWICE}{{% set n.a = [n.a] + [n.a] %}}{{% endfor %}}{{{{ n.a }}}}",
    "by *": f"{_TWICE}{{% set n.a = [n.a] * 2 %}}{{% endfor %}}{{{{ n.a }}}}",
    "by what fills a batch": f"{_TWICE}{{% for b in n.a | batch(i + 2, n.a) %}}{{% set n.a = b %}}{{% endfor %}}"
    "{% endfor %}{{ n.a }}",
    "compared": f"{_TWICE}{{% set n.a = [n.a, n.a] %}}{{% set n.b = [n.b, n.b] %}}{{% endfor %}}{{{{ n.a == n.b }}}}",
    "a key": f"{_TWICE}{{% set n.t = (n.t, n.t) %}}{{% endfor %}}{{{{ {{n.t: 1}} }}}}",
}
LONG = {
    "join": "{{ ([s] * 100000) | join }}",
    "join, a method": "{{ ''.join([s] * 100000) }}",
    "join of what is made on its way": "{{ ([s] * 100000) | map('upper') | join }}",
    "what is between": "{{ (['a'] * 100000) | join(s) }}",
    "%": "{{ ('%s' * 100000) % ((s,) * 100000) }}",
    "format, a filter": "{{ ('%(a)s' * 100000) | format(a=s) }}",
    "format": "{{ ('{0}' * 100000).format(s) }}",
    "format_map": "{{ ('{a}' * 100000).format_map({'a': s}) }}",
    "a width that is given": "{{ '{:{w}}'.format(1, w='999999999') }}",
    "many widths": "{{ ('{0:999999}' * 10000).format(1) }}",
    "many widths of %": "{{ ('%999999d' * 10000) % ((1,) * 10000) }}",
    "tabs": "{{ ('\t' * 1000000).expandtabs(1000000) }}",
    "translate": "{{ s.translate({97: s}) }}",
    "a macro": "{% macro m() %}" + _OFTEN + "{% endmacro %}{{ m() }}",
    "a set block": "{% set y %}" + _OFTEN + "{% endset %}",
    "a filter block": "{% filter length %}" + _OFTEN + "{% endfilter %}",
    "bytes": "{{ 'a'.encode().center(2000000000) }}",
    "bytes of a number": "{{ (1).to_bytes(2000000000, 'big') }}",
    "lines": "{{ s | wordwrap(1, wrapstring=s) }}",
    "links": "{{ ('http://a.bc ' * 100000) | urlize(target=s) }}",
    "an indent": "{{ ([1] * 100000) | tojson(indent=s) }}",
    "separators": "{{ ([1] * 100000) | tojson(separators=(s, s)) }}",
    "a sum of lists": "{{ ([[1] * 100000] * 20000) | sum(start=[]) }}",
    "random words": "{{ lipsum(n=100000000) }}",
}
SLOW = {
    "words": "{% set s = 'a ' * 3000000 %}{% for i in range(20000) %}{{ s | wordcount }}{% endfor %}",
    "equal texts": "{% set s = 'a' * 6000000 %}{% set t = 'a' * 6000000 %}{% for i in range(20000) %}{{ s == t }}"
    "{% endfor %}",
    "a text in another": "{% set s = 'ab' * 3000000 %}{% for i in range(20000) %}{{ 'aab' in s }}{% endfor %}",
    "a number in a list": "{% set s = [1] * 3000000 %}{% for i in range(20000) %}{{ 2 in s }}{% endfor %}",
    "the least": "{% set s = [1] * 3000000 %}{% for i in range(20000) %}{{ s | min }}{% endfor %}",
    "a slice": "{% set s = 'ab' * 3000000 %}{% for i in range(20000) %}{% set t = s[1:] %}{% endfor %}",
    "an encoding": "{{ ('\u00e4' * 200000).encode('punycode') }}",
}


def rendered(template: str, content: str = "hi") -> str:
    renderer = Renderer(ChatTemplate("a.jinja", (("default", template),), (), (), None, "digest"))
    return renderer.render(Conversation([{"role": "user", "content": content}], None, 60))[0]


@pytest.mark.parametrize(
    "template",
    [*NESTED.values(), *(_LONG + one for one in LONG.values()), *SLOW.values()],
    ids=[*(f"nested, {one}" for one in NESTED), *LONG, *SLOW],
)
def test_stopped_before_it_is_made(template: str, confined: Callable[..., Any]) -> None:
    found = confined(lambda: rendered(template))
    assert isinstance(found, UnusableError), found
    assert "was stopped" in str(found) or "'lipsum' is undefined" in str(found)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ ['a', 1] ~ 'b' }}", "['a', 1]b"),
        ("{{ ('%s, 100%% **%s**') % ('a', 'b') }}", "a, 100% **b**"),
        ("{{ '{\"a\": %s}' | format(1) }}", '{"a": 1}'),
        ("{{ '{:>5}|{}'.format('a', messages[0].content) }}", "    a|hi"),
        ("{{ messages | map(attribute='content') | join(', ') }}", "hi"),
        ("{{ messages | tojson(indent=1) }}", '[\n {\n  "role": "user",\n  "content": "hi"\n }\n]'),
        ("{% for a, b in messages[0].items() %}{{ a }}={{ b }};{% endfor %}", "role=user;content=hi;"),
        ("{{ 'x' if messages[0].role == messages[0]['role'] and 'h' in messages[0].content else 'y' }}", "x"),
        ("{{ 'a b c'.split(' ')[1:] | list }}", "['b', 'c']"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m('b') }}", "<b>"),
    ],
)
def test_what_templates_do_otherwise(template: str, text: str) -> None:
    assert rendered(template) == text
