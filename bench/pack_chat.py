"""How fast are conversations tokenized with a loss mask, compared with transformers' `apply_chat_template`?"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import data
import numpy as np
from harness import DATA, PYTHON, Failed, Options, Result, alternate, answer, child, columns, row

TARGET = 1.0
_CONVERSATIONS, _TURNS = 1_000, 6
_TEMPLATE = """{%- for turn in messages -%}
{{- '<|im_start|>' + turn['role'] + '\\n' -}}
{%- if turn['role'] == 'assistant' -%}
{%- generation -%}{{- turn['content'] + '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- else -%}
{{- turn['content'] + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}"""


def run(options: Options) -> Result:
    """Run pairs of single-process children: Penstock packs to disk, transformers creates lists in memory."""
    from peers.environments import interpreter

    peer = interpreter("transformers")
    lines = data.made("chat.jsonl", _write)
    tokenizer = _tokenizer()
    given = {"lines": lines, "tokenizer": tokenizer}
    pairs = alternate(
        lambda: child(PYTHON, __file__, "packed", **given),
        lambda: child(peer, __file__, "rendered", **given),
        options.pairs(3),
    )
    for ours, theirs in pairs:
        if ours["generated"] != theirs["generated"]:
            raise Failed(f"{ours['generated']} masked tokens, {theirs['generated']} with transformers")
    megabytes = lines.stat().st_size / 1e6
    name = "chat template, token ids and loss mask, one process"
    return Result(
        f"Tokenize {_CONVERSATIONS:,} conversations of {_TURNS} turns ({megabytes:.0f} MB)",
        [row(name, "MB/s", columns(pairs, "rate", "rate"), "transformers", TARGET)],
        [
            "Both select the same number of tokens for the loss. Penstock also validates its input, writes tokens and "
            "mask to disk with fsync, and lists conversations without a mask. Both tokenize with `tokenizers`, which "
            "returns the character offsets of each token.",
        ],
    )


def packed(lines: str, tokenizer: str) -> dict[str, Any]:
    """Run `pack --chat` without workers into a file, in a child process."""
    import penstock as ps

    target = DATA / "chat.pbin"
    started = time.perf_counter()
    ps.pack(lines, target, tokenizer=tokenizer, chat=True, executor="inline", overwrite=True)
    seconds = time.perf_counter() - started
    source: Any = ps.open(target)
    generated = sum(int(np.count_nonzero(source[index]["loss_mask"])) for index in range(len(source)))
    for path in DATA.glob("chat.pbin*"):
        path.unlink()
    return {"rate": Path(lines).stat().st_size / 1e6 / seconds, "generated": generated}


def rendered(lines: str, tokenizer: str) -> dict[str, Any]:
    """Apply the chat template to each line and return the mask, in a child process with transformers."""
    import transformers  # type: ignore[import-not-found]

    made: Any = transformers.AutoTokenizer.from_pretrained(tokenizer)
    options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
    started, generated = time.perf_counter(), 0
    with open(lines, encoding="utf-8") as file:
        for line in file:
            found = made.apply_chat_template(json.loads(line)["messages"], **options)
            generated += sum(found["assistant_masks"])
    return {"rate": Path(lines).stat().st_size / 1e6 / (time.perf_counter() - started), "generated": generated}


def _tokenizer() -> Path:
    """Return the tokenizer of the other benchmarks, with a chat template."""

    def make(path: Path) -> None:
        import tokenizers

        found = tokenizers.Tokenizer.from_file(str(data.tokenizer() / "tokenizer.json"))
        found.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        path.mkdir()
        found.save(str(path / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": data.EOS, "chat_template": _TEMPLATE}
        (path / "tokenizer_config.json").write_text(json.dumps(config))

    return data.made("chat-tokenizer", make)


def _write(path: Path) -> None:
    with data.text().open(encoding="utf-8") as texts, path.open("w", encoding="utf-8") as file:
        for _ in range(_CONVERSATIONS):
            said = [json.loads(next(texts))["text"][:1200] for _ in range(_TURNS)]
            turns = [{"role": ("user", "assistant")[at % 2], "content": one} for at, one in enumerate(said)]
            file.write(json.dumps({"messages": turns}) + "\n")


if __name__ == "__main__":
    answer(globals())
