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
