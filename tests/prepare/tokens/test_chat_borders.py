"""Borders of messages from one rendering: the same text and spans as from rendering every beginning."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.internals import Conversation, Renderer, UnusableError, current, load_spec, load_template, replace
from tests.prepare.chat_styles import ALL_STYLES, STYLES, Style, write_tokenizer

from penstock.store import LocalStore

LOOP = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]BODY{% endfor %}TAIL"
PROMPT = "{% if add_generation_prompt %}[assistant:{% endif %}"


def loop(body: str = "", tail: str = PROMPT, before: str = "") -> str:
    return before + LOOP.replace("BODY", body).replace("TAIL", tail)


TEMPLATES = {
    "plain": loop(),
    "looks ahead": loop("{% if not loop.last and messages[loop.index0 + 1].role == 'user' %}!{% endif %}"),
    "looks ahead at calls": loop(
        "{% if m.role == 'tool' and (loop.last or messages[loop.index0 + 1].role != 'tool') %}!{% endif %}"
    ),
    "last": loop("{% if loop.last %}!{% endif %}"),
    "last, by key": loop("{% if loop['last'] %}!{% endif %}"),
    "last, by another name": loop("{% set l = loop %}{% if l.last %}!{% endif %}"),
    "last, in an inner loop": loop("{% for x in [1, 2] %}{% if not loop.last %},{% endif %}{% endfor %}"),
    "last, outside an inner loop": loop("{% for x in [loop.last] %}{{ x }}{% endfor %}"),
    "previous": loop("{% if loop.previtem and loop.previtem.role == m.role %}!{% endif %}{{ loop.index }}"),
    "length": loop("{{ messages | length }}"),
    "length before": loop(before="{{ messages | length }}"),
    "last user": loop(
        "{% if loop.index0 < ns.at %}old{% endif %}",
        before="{% set ns = namespace(at=0) %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% set ns.at = loop.index0 %}"
        "{% endif %}{% endfor %}",
    ),
    "counts": loop("{% set ns.n = ns.n + 1 %}{{ ns.n }}", before="{% set ns = namespace(n=0) %}"),
    "counts, and says how many": loop(
        "{% set ns.n = ns.n + 1 %}", PROMPT + "{{ ns.n }}", before="{% set ns = namespace(n=0) %}"
    ),
    "prompt of a count": loop(
        "{% set ns.n = ns.n + 1 %}",
        "{% if add_generation_prompt %}{% if ns.n > 1 %}[assistant:{% else %}?{% endif %}{% endif %}",
        before="{% set ns = namespace(n=0) %}",
    ),
    "prompt in the loop": loop("{% if loop.last and add_generation_prompt %}[assistant:{% endif %}", ""),
    "prompt in the loop, and more": loop("{% if loop.last and add_generation_prompt %}[assistant:{% endif %}.", ""),
    "prompt, else": loop(tail="{% if add_generation_prompt %}[assistant:{% else %}END{% endif %}"),
    "prompt elsewhere": loop("{{ 'x' if add_generation_prompt }}"),
    "prompt not as the answer": loop(tail="{% if add_generation_prompt %}<answer>{% endif %}"),
    "system before": "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>"
    "{% set turns = messages[1:] %}{% else %}"
    "{% set turns = messages %}{% endif %}"
    + LOOP.replace("messages", "turns").replace("BODY", "").replace("TAIL", PROMPT),
    "system before, by the same name": "{% if messages[0].role == 'system' %}<{{ messages[0].content }}>"
    "{% set messages = messages[1:] %}{% endif %}" + loop("{{ messages[0].role }}"),
    "first": loop("{{ messages[0].content }}"),
    "second": loop("{{ messages[1].content }}"),
    "reversed": "{% set turns = messages | reverse | list %}"
    + LOOP.replace("messages", "turns").replace("BODY", "").replace("TAIL", ""),
    "all but the last": "{% for m in messages[:-1] %}[{{ m.content }}]{% endfor %}[{{ messages[-1].content }}]",
    "only some": "{% for m in messages if m.role != 'tool' %}[{{ m.role }}:{{ m.content }}]{% endfor %}" + PROMPT,
    "break": loop("{% if loop.index > 3 %}{% break %}{% endif %}"),
    "continue": "{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}" + PROMPT,
    "macro": "{% macro f() %}{{ messages | length }}{% endmacro %}" + loop("{{ f() }}"),
    "macro of a message": "{% macro f(m) %}{{ m.content }}{% endmacro %}" + loop("{{ f(m) }}"),
    "an end": loop(tail=PROMPT + "END"),
    "nested": "{% if true %}" + loop() + "{% endif %}",
    "strict": loop("{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('order') }}{% endif %}"),
    "kept": "{% set all %}" + loop() + "{% endset %}{{ all | trim }}",
    **{f"style {name}": style.unmarked for name, style in ALL_STYLES.items()},
}
ONE_RENDERING = {
    "plain",
    "last, in an inner loop",
    "previous",
    "counts",
    "prompt in the loop",
    "system before",
    "first",
}


def renderer(bpe2: Path, folder: Path, template: str) -> Renderer:
    style = STYLES["qwen"]
    tokenizer = write_tokenizer(bpe2, folder / "tokenizer", Style(template, style.bos, style.eos))
    spec, _ = load_spec(tokenizer, LocalStore(), eos=None, special_tokens=False)
    return Renderer(load_template(spec, LocalStore()))


def conversation(draw: random.Random) -> Conversation:
    roles = ["system"] * draw.randrange(2) + draw.choices(["user", "assistant", "tool", "user"], k=draw.randrange(1, 6))
    messages: list[dict[str, Any]] = [
        {"role": role, "content": draw.choice(["", "a", " b\n", "[assistant:"])} for role in roles
    ]
    untrained = frozenset(number for number in range(len(messages)) if draw.random() < 0.1)
    return Conversation(messages, None, 200, untrained)


def rendered(made: Renderer, asked: Conversation) -> Any:
    try:
        return made.render(asked)
    except UnusableError as error:
        return str(error)


@pytest.mark.parametrize("name", TEMPLATES)
def test_one_rendering_tells_what_all_tell(
    name: str, bpe2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = renderer(bpe2, tmp_path / "a", TEMPLATES[name])
    replace(monkeypatch, "make_bordered", lambda *_: None)
    slow = renderer(bpe2, tmp_path / "b", TEMPLATES[name])
    draw = random.Random(name)
    for asked in (conversation(draw) for _ in range(60)):
        assert rendered(fast, asked) == rendered(slow, asked), asked


@pytest.mark.parametrize("name", sorted(ONE_RENDERING | {f"style {name}" for name in STYLES if name != "deepseek"}))
def test_how_often_a_conversation_is_rendered(
    name: str, bpe2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, count = renderer(bpe2, tmp_path, TEMPLATES[name]), [0]
    plain = current("rendered_text")

    def counted(*args: Any, **kwargs: Any) -> str:
        count[0] += 1
        return plain(*args, **kwargs)

    replace(monkeypatch, "rendered_text", counted)
    turns = [{"role": role, "content": "a"} for role in ["user", "assistant"] * 5]
    _, spans = made.render(Conversation(turns, None, 200))
    assert len(spans) == 5
    assert count[0] <= 2, "the conversation, and the prompt"
