"""A dozen styles of chat templates as models have them, in words of our own, and conversations for them.

Each marks what an assistant says by `{% generation %}`; without these marks (`unmarked`) the same text comes out.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<|begin_of_text|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>", "<|User|>", "<|Assistant|>"),
    *("<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
    *("<tool_call>", "</tool_call>"),
]
"""Special tokens of all styles: what the tokenizer of the tests lacks gets the next ids."""


@dataclass(frozen=True, slots=True)
class Style:
    """A chat template.

    Attributes:
        template: jinja2.
        bos, eos: its special tokens.
        takes: which conversations it can render: "plain", "system", "tools".
    """

    template: str
    bos: str
    eos: str
    takes: tuple[str, ...] = ("plain", "system")

    @property
    def unmarked(self) -> str:
        """The same without marks."""
        return re.sub(r"\{%-? *(?:end)?generation *-?%\}", "", self.template)


_CHATML = """{%- for turn in messages -%}
{{- '<|im_start|>' + turn['role'] + '\\n' -}}
{%- if turn['role'] == 'assistant' -%}
{%- generation -%}{{- turn['content'] + '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- else -%}
{{- turn['content'] + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

_LLAMA_2 = """{% if messages[0].role == 'system' %}{% set before = messages[0].content %}{% set turns = messages[1:] %}
{% else %}{% set before = none %}{% set turns = messages %}{% endif %}
{% for turn in turns %}
{% if (turn.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles have to take turns') }}{% endif %}
{% if loop.index0 == 0 and before is not none %}
{% set said = '<<SYS>>\\n' ~ before ~ '\\n<</SYS>>\\n\\n' ~ turn.content %}
{% else %}
{% set said = turn.content %}
{% endif %}
{% if turn.role == 'user' %}
{{- bos_token ~ '[INST] ' ~ (said | trim) ~ ' [/INST]' -}}
{% else %}
{%- generation -%}{{- ' ' ~ (said | trim) ~ ' ' ~ eos_token -}}{%- endgeneration -%}
{% endif %}
{% endfor %}"""

_LLAMA_3 = """{{- bos_token -}}
{%- for turn in messages -%}
{{- '<|start_header_id|>' ~ turn.role ~ '<|end_header_id|>\\n\\n' -}}
{%- if turn.role == 'assistant' -%}
{% generation %}{{- turn.content | trim }}{{ '<|eot_id|>' -}}{% endgeneration %}
{%- else -%}
{{- (turn.content | trim) ~ '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{% endif -%}"""

_MISTRAL = """{{- bos_token }}
{%- for turn in messages %}
{%- if turn['role'] == 'user' %}{{- '[INST] ' + turn['content'] + '[/INST]' }}
{%- elif turn['role'] == 'assistant' %}{% generation %}{{- ' ' + turn['content'] + eos_token }}{% endgeneration %}
{%- else %}{{- raise_exception('only user and assistant may speak') }}
{%- endif %}
{%- endfor -%}"""

_GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}
{% for turn in messages %}
{% if turn['role'] == 'assistant' %}{% set who = 'model' %}{% else %}{% set who = turn['role'] %}{% endif %}
{{- '<start_of_turn>' + who + '\\n' -}}
{% if who == 'model' %}{%- generation -%}{{- turn['content'] | trim -}}{{- '<end_of_turn>\\n' -}}{%- endgeneration -%}
{% else %}{{- (turn['content'] | trim) + '<end_of_turn>\\n' -}}{% endif %}
{% endfor %}{% if add_generation_prompt %}{{- '<start_of_turn>model\\n' -}}{% endif %}"""

_ZEPHYR = """{% for turn in messages %}
{% if turn['role'] == 'user' %}
{{ '<|user|>\\n' + turn['content'] + eos_token }}
{% elif turn['role'] == 'system' %}
{{ '<|system|>\\n' + turn['content'] + eos_token }}
{% elif turn['role'] == 'assistant' %}
{{ '<|assistant|>\\n' }}{% generation %}{{ turn['content'] + eos_token }}{% endgeneration %}

{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

_PHI_3 = """{% for turn in messages %}{% if turn['role'] == 'assistant' %}{{ '<|assistant|>\\n' }}\
{% generation %}{{ turn['content'] + '<|end|>\\n' }}{% endgeneration %}\
{% else %}{{ '<|' + turn['role'] + '|>\\n' + turn['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

_VICUNA = """{{ bos_token }}{% for turn in messages %}{% if turn.role == 'system' %}{{ turn.content ~ '\\n\\n' }}\
{% elif turn.role == 'user' %}{{ 'USER: ' ~ turn.content ~ '\\n' }}\
{% else %}{{ 'ASSISTANT:' }}{% generation %}{{ ' ' ~ turn.content ~ eos_token }}{% endgeneration %}{{ '\\n' }}\
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""

_ALPACA = """{% for turn in messages %}
{% if turn.role == 'system' %}
{{ turn.content }}

{% elif turn.role == 'user' %}
### Instruction:
{{ turn.content }}

{% else %}
### Response:
{% generation %}{{ turn.content }}{{ eos_token }}{% endgeneration %}


{% endif %}
{% endfor %}
{% if add_generation_prompt %}
### Response:
{% endif %}"""

_DEEPSEEK = """{% set kept = namespace(system='', first=true) %}
{%- for turn in messages %}{%- if turn['role'] == 'system' %}\
{%- if kept.first %}{% set kept.system = turn['content'] %}\
{% set kept.first = false %}{%- else %}{% set kept.system = kept.system + '\\n\\n' + turn['content'] %}{%- endif %}\
{%- endif %}{%- endfor %}
{{- bos_token }}{{- kept.system }}
{%- for turn in messages %}
{%- if turn['role'] == 'user' %}{{- '<|User|>' + turn['content'] }}{%- endif %}
{%- if turn['role'] == 'assistant' %}{{- '<|Assistant|>' }}\
{% generation %}{{- turn['content'] }}{{- eos_token }}{% endgeneration %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|>' }}{%- endif %}"""

_QWEN = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Functions that may be called, one a line:' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for turn in messages %}
{%- if turn.role == 'user' %}{{- '<|im_start|>user\\n' + turn.content + '<|im_end|>\\n' }}
{%- elif turn.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- generation %}
{%- if turn.content %}{{- turn.content }}{%- endif %}
{%- for call in turn.tool_calls or [] %}
{%- set call = call.function if call.function else call %}
{{- '<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endgeneration %}
{{- '\\n' }}
{%- elif turn.role == 'tool' %}{{- '<|im_start|>user\\n(' + turn.content + ')<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

_COMMAND_R = """{{ bos_token }}{% for turn in messages %}\
{% if turn.role == 'system' %}{% set tag = '<|SYSTEM_TOKEN|>' %}\
{% elif turn.role == 'user' %}{% set tag = '<|USER_TOKEN|>' %}{% else %}{% set tag = '<|CHATBOT_TOKEN|>' %}{% endif %}\
{{ '<|START_OF_TURN_TOKEN|>' ~ tag }}{% if turn.role == 'assistant' %}{% generation %}{{ turn.content | trim }}\
{{ '<|END_OF_TURN_TOKEN|>' }}{% endgeneration %}\
{% else %}{{ (turn.content | trim) ~ '<|END_OF_TURN_TOKEN|>' }}{% endif %}\
{% if loop.index > 400 %}{% break %}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

STYLES: dict[str, Style] = {
    "chatml": Style(_CHATML, "<s>", "<|im_end|>"),
    "llama-2": Style(_LLAMA_2, "<s>", "</s>"),
    "llama-3": Style(_LLAMA_3, "<|begin_of_text|>", "<|eot_id|>"),
    "mistral": Style(_MISTRAL, "<s>", "</s>", ("plain",)),
    "gemma": Style(_GEMMA, "<bos>", "<eos>", ("plain",)),
    "zephyr": Style(_ZEPHYR, "<s>", "</s>"),
    "phi-3": Style(_PHI_3, "<s>", "<|endoftext|>"),
    "vicuna": Style(_VICUNA, "<s>", "</s>"),
    "alpaca": Style(_ALPACA, "<s>", "</s>"),
    "deepseek": Style(_DEEPSEEK, "<s>", "</s>"),
    "qwen": Style(_QWEN, "<s>", "<|im_end|>", ("plain", "system", "tools")),
    "command-r": Style(_COMMAND_R, "<bos>", "<|END_OF_TURN_TOKEN|>"),
}


def _rich(turn: str, before: str = "") -> str:
    """ChatML around `turn`, which renders what is in a message `m`; the answer is marked with its end."""
    return (
        before
        + """{%- for m in messages -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' -}}
{%- if m.role == 'assistant' -%}{%- generation -%}"""
        + turn
        + """{{- '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}"""
        + turn
        + """{{- '<|im_end|>' -}}{%- endif -%}{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
    )


_CALLS = "{%- for c in m.tool_calls or [] -%}{%- set f = c.function or c -%}"
_TOOLS = "{%- for t in tools or [] -%}{{- t | tojson -}}{{- '\\n' -}}{%- endfor -%}"
_RICH = {
    # Arguments and content as templates take them, each with its own way to tell what is missing.
    "tojson": _rich(
        "{{- m.content or '' -}}"
        + _CALLS
        + "{{- '(' ~ f.name ~ ' ' -}}{{- f.arguments | tojson -}}{{- ')' -}}{%- endfor -%}",
        _TOOLS,
    ),
    "concat": _rich(
        "{{- m.content -}}" + _CALLS + "{{- '(' + f.name + ' ' + f.arguments + ')' -}}{%- endfor -%}", _TOOLS
    ),
    "items": _rich(
        "{{- m.content -}}" + _CALLS + "{{- '(' ~ f.name -}}{%- for k, v in f.arguments | items -%}"
        "{{- ' ' ~ k ~ '=' ~ v -}}{%- endfor -%}{{- ')' -}}{%- endfor -%}"
    ),
    "in": _rich(
        "{%- if 'tool_calls' in m -%}{{- m.tool_calls | tojson -}}{%- endif -%}"
        "{%- if 'content' in m -%}{{- m.content -}}{%- endif -%}"
        "{%- if 'name' in m -%}{{- ' by ' ~ m.name -}}{%- endif -%}"
    ),
    "defined": _rich(
        "{%- if m.tool_calls is defined -%}{{- m.tool_calls[0] | tojson -}}{%- else -%}{{- m.content -}}{%- endif -%}"
        "{%- if m.tool_call_id is not none -%}{{- ' #' ~ m.tool_call_id -}}{%- endif -%}"
    ),
    "reasoning": _rich(
        "{%- if m.reasoning_content -%}{{- '(think)' ~ m.reasoning_content ~ '(/think)' -}}{%- endif -%}"
        "{{- m.content -}}"
    ),
    "thinking": _rich(
        "{%- if m.thinking is defined -%}{{- '[' ~ m.thinking ~ ']' -}}{%- endif -%}{{- m.content or '' -}}"
    ),
    "parts": _rich(
        "{%- if m.content is string -%}{{- m.content -}}{%- else -%}{%- for p in m.content -%}"
        "{%- if p.type == 'text' -%}{{- p.text -}}{%- else -%}{{- '(' ~ p.type ~ ')' -}}{%- endif -%}"
        "{%- if not loop.last -%}{{- ' ' -}}{%- endif -%}{%- endfor -%}{%- endif -%}"
    ),
    "whole": _rich(
        "{{- m | tojson(sort_keys=true) -}}",
        "{%- if tools is not none -%}{{- tools | tojson(sort_keys=true) -}}{%- endif -%}",
    ),
}
ALL_STYLES = STYLES | {
    name: Style(template, "<s>", "<|im_end|>", ("plain", "system", "tools")) for name, template in _RICH.items()
}
"""With styles that differ in how they read messages, for `SHAPES`."""

_PLAIN = [
    [("user", "What is 2 + 2?"), ("assistant", "It is 4.")],
    [("user", "  Hello,\n\nyou  "), ("assistant", " Good day! "), ("user", "日本?"), ("assistant", "はい 😀\nyes")],
    [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "and a last question")],
    [("user", "{{ 7 * 7 }} {% raw %}"), ("assistant", "e\u0301 is two characters; 'quoted' & <b>")],
]
_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "city": "München <>"}}}
_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}}


def conversations(style: Style) -> list[dict[str, Any]]:
    """Lines of JSONL that a style can render."""
    plain = [{"messages": [{"role": who, "content": said} for who, said in one]} for one in _PLAIN]
    found = list(plain)
    if "system" in style.takes:
        system = {"role": "system", "content": "Be  brief. "}
        found += [{"messages": [system, *one["messages"]], "id": 7} for one in plain]
    if "tools" in style.takes:
        asked = {"role": "user", "content": "How is the weather?"}
        calls = {"role": "assistant", "content": "", "tool_calls": [_CALL, _CALL]}
        told = [{"role": "tool", "content": "17 °C"}, {"role": "assistant", "content": "Mild."}]
        found.append({"messages": [asked, calls, *told], "tools": [_TOOL, _TOOL]})
    return found


_ASKED = {"role": "user", "content": "list the files"}
_SAID = {"role": "assistant", "content": "One file."}
_LIST = {
    "id": "c1",
    "type": "function",
    "function": {"name": "exec", "arguments": {"cmd": "ls", "deep": {"a": [1, 2], "b": "x"}}},
}
_TEXT = {"id": "c1", "type": "function", "function": {"name": "exec", "arguments": '{"cmd": "ls"}'}}
_ANSWER = {"role": "tool", "tool_call_id": "c1", "name": "exec", "content": "a.txt"}


def _with_call(call: dict[str, Any], **content: Any) -> list[dict[str, Any]]:
    return [_ASKED, {"role": "assistant", **content, "tool_calls": [call]}, _ANSWER, _SAID]


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


SHAPES: dict[str, dict[str, Any]] = {
    "call, empty content": {"messages": _with_call(_LIST, content="")},
    "call, null content": {"messages": _with_call(_LIST, content=None)},
    "call, no content": {"messages": _with_call(_LIST)},
    "call as text": {"messages": _with_call(_TEXT, content="")},
    "call as text, null content": {"messages": _with_call(_TEXT, content=None)},
    "bare call": {"messages": _with_call(_LIST["function"], content="Let me look.")},
    "two calls": {
        "messages": [_ASKED, {"role": "assistant", "content": "", "tool_calls": [_LIST, _LIST]}, _ANSWER, _SAID]
    },
    "null calls": {"messages": [{**_ASKED, "tool_calls": None}, {**_SAID, "tool_calls": None}]},
    "null name": {"messages": [{**_ASKED, "name": None}, {**_SAID, "name": None, "tool_call_id": None}]},
    "names": {"messages": [{**_ASKED, "name": "Ada"}, {**_SAID, "name": "Bob"}]},
    "reasoning": {"messages": [_ASKED, {"role": "assistant", "reasoning": "hm", "content": "One file."}]},
    "thinking": {"messages": [_ASKED, {**_SAID, "thinking": "hm"}]},
    "reasoning_content": {"messages": [_ASKED, {**_SAID, "reasoning_content": "hm", "thinking": "no"}]},
    "null reasoning": {"messages": [_ASKED, {**_SAID, "reasoning_content": None, "reasoning": "hm"}]},
    "parts": {"messages": [{"role": "user", "content": [_part("a"), _part("b")]}, {**_SAID, "content": [_part("c")]}]},
    "image part": {
        "messages": [{"role": "user", "content": [{"type": "image"}, _part("hi")]}, {**_SAID, "content": [_part("c")]}]
    },
    "parts and text": {"messages": [{"role": "user", "content": [_part("a"), _part("b")]}, _SAID]},
    "empty turns": {"messages": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]},
    "system only": {"messages": [{"role": "system", "content": "Be brief."}]},
    "user last": {"messages": [_ASKED, _SAID, _ASKED]},
    "tools": {"messages": _with_call(_LIST, content=""), "tools": [_TOOL]},
    "two tools": {"messages": [_ASKED, _SAID], "tools": [_TOOL, {"type": "function", "function": {"name": "exec"}}]},
    "null tools": {"messages": [_ASKED, _SAID], "tools": None},
    "empty tools": {"messages": [_ASKED, _SAID], "tools": []},
    "null in arguments": {
        "messages": _with_call({"function": {"name": "f", "arguments": {"a": None, "b": 1}}}, content="")
    },
}
"""Conversations in the shapes that data has, each a line of JSONL."""


def write_tokenizer(base: Path, folder: Path, style: Style, template: str | None = None) -> Path:
    """A tokenizer's folder with all special tokens, and a chat template.

    Args:
        base: the folder of a tokenizer.
        folder: where it goes.
        style: the template and its tokens.
        template: another one.
    """
    shutil.copytree(base, folder)
    for file in (folder, *folder.iterdir()):
        file.chmod(0o755)
    (folder / "special_tokens_map.json").unlink()
    model = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    # Characters that this tokenizer has as special tokens are text here.
    model["added_tokens"] = [one for one in model["added_tokens"] if len(one["content"]) > 1]
    known = {one["content"] for one in model["added_tokens"]}
    first = max(*model["model"]["vocab"].values(), *(one["id"] for one in model["added_tokens"])) + 1
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    new = [one for one in SPECIAL if one not in known]
    model["added_tokens"] += [
        {"id": first + n, "content": one, **flags, "special": "tool" not in one} for n, one in enumerate(new)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(model), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": style.bos, "eos_token": style.eos}
    config |= {"chat_template": style.template if template is None else template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def read_goldens(golden: Path) -> dict[str, list[dict[str, Any] | None]]:
    """Style → ids and mask that transformers gives each of `SHAPES`; None for one that it refuses."""
    found = json.loads((golden / "chat" / "shapes.json").read_text())
    return {
        name: [
            None if one is None else {"ids": one["ids"], "mask": [int(value) for value in one["mask"]]}
            for one in answers
        ]
        for name, answers in found.items()
    }


def goldens_text(answers: dict[str, list[dict[str, Any] | None]]) -> str:
    """The text of the file of goldens, a line per style; the inverse of `read_goldens`."""
    lines = []
    for name, found in answers.items():
        short = [None if one is None else {"ids": one["ids"], "mask": "".join(map(str, one["mask"]))} for one in found]
        lines.append(f"{json.dumps(name)}: {json.dumps(short, separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
