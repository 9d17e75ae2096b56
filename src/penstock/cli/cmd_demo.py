"""`penstock demo [DIR]`: the token pipeline from end to end, on the Python standard library's own source files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from penstock.cli._output import emit, human_bytes, json_option, note, table

WINDOW_TOKENS = 2048
VOCAB_SIZE = 16_384
GLOBAL_BATCH = 64
_TRAIN_BYTES = 8_000_000
EOS = "<|endoftext|>"


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: its summary, duration and rate."""

    name: str
    made: str
    seconds: float
    rate: str


@click.command()
@click.argument("folder", default="penstock-demo")
@click.option("--overwrite", is_flag=True, help="Replace the files of an earlier demo.")
@click.option("--max-mb", type=click.FloatRange(min=0.1), help="Use at most this many MB of text.")
@json_option
def command(folder: str, overwrite: bool, max_mb: float | None, as_json: bool) -> None:
    """Run the full pipeline on the Python standard library.

    Writes its source files as JSONL to FOLDER, then indexes them, trains a tokenizer, packs and verifies the tokens,
    streams shuffled batches, and stops and resumes the stream. FOLDER is penstock-demo if omitted.
    """
    from penstock.errors import ConfigError
    from penstock.store.place import local_path

    folder = local_path(folder, "the demo directory")
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise ConfigError("a file, not a directory", path=folder, hint="Name a new directory")
    if os.path.isdir(folder) and os.listdir(folder) and not overwrite:
        raise ConfigError("the directory is not empty", path=folder, hint="Name another one, or pass --overwrite")
    text_path, tokenizer_path, packed_path = (
        os.path.join(folder, name) for name in ("stdlib.jsonl", "tokenizer.json", "stdlib.pbin")
    )
    steps: list[Step] = []
    run = _Runner(steps)
    run("gather", lambda: _gather(text_path, max_mb))
    run("index", lambda: _index(text_path))
    run("train a tokenizer", lambda: _train(text_path, tokenizer_path))
    run("pack", lambda: _pack(text_path, packed_path, tokenizer_path))
    run("verify", lambda: _verify(packed_path))
    run("stream an epoch", lambda: _stream(packed_path))
    run("stop and resume", lambda: _resume(packed_path))
    data = {"folder": folder, "steps": [{name: getattr(step, name) for name in Step.__slots__} for step in steps]}
    emit(data, as_json=as_json, text=lambda: _report(steps, tokenizer_path))


@dataclass(frozen=True, slots=True)
class _Runner:
    steps: list[Step]

    def __call__(self, name: str, work: Callable[[], tuple[str, float, str]]) -> None:
        """Time a step: `work` returns a summary, an amount, and the unit of its rate."""
        note(f"{name} …")
        started = time.perf_counter()
        made, amount, unit = work()
        seconds = time.perf_counter() - started
        rate = human_bytes(amount / seconds) + "/s" if unit == "bytes" else f"{amount / seconds:,.0f} {unit}/s"
        self.steps.append(Step(name, made, seconds, rate))


def _gather(text_path: str, max_mb: float | None) -> tuple[str, float, str]:
    import sysconfig
    from pathlib import Path

    import msgspec

    from penstock.store import LocalStore

    root = Path(sysconfig.get_paths()["stdlib"])
    left_bytes = float("inf") if max_mb is None else max_mb * 1e6
    staged = LocalStore().stage(text_path, overwrite=True)
    files = 0
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts or "dist-packages" in path.parts or left_bytes <= 0:
            continue
        text = path.read_text("utf-8", errors="replace")
        if text.strip():
            left_bytes -= staged.write(msgspec.json.encode({"path": str(path.relative_to(root)), "text": text}) + b"\n")
            files += 1
    size_bytes = staged.tell()
    staged.commit()
    return f"{files:,} source files as JSONL, {human_bytes(size_bytes)}", size_bytes, "bytes"


def _index(text_path: str) -> tuple[str, float, str]:
    from penstock.prepare.jsonl_index import build_index

    build_index(text_path, overwrite=True)
    from penstock.formats import open_source

    return f"{len(open_source(text_path)):,} lines, each valid JSON", os.path.getsize(text_path), "bytes"


def _train(text_path: str, tokenizer_path: str) -> tuple[str, float, str]:
    from penstock._optional import require
    from penstock.formats import open_source

    tokenizers = require("tokenizers", extra="tokenize")
    source = open_source(text_path)
    step = max(1, os.path.getsize(text_path) // _TRAIN_BYTES)
    texts = [source[i]["text"] for i in range(0, len(source), step)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[EOS],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(tokenizer_path)
    return f"{tokenizer.get_vocab_size():,} entries, byte-level BPE", sum(map(len, texts)), "bytes"


def _pack(text_path: str, packed_path: str, tokenizer_path: str) -> tuple[str, float, str]:
    from penstock.prepare import pack

    report = pack([text_path], packed_path, tokenizer=tokenizer_path, eos=EOS, overwrite=True, restart=True)
    made = f"{report.documents:,} documents, {report.tokens:,} tokens"
    return made, os.path.getsize(text_path), "bytes"


def _verify(packed_path: str) -> tuple[str, float, str]:
    from penstock.check import verify
    from penstock.errors import Corrupt

    findings = verify(packed_path, depth="full")
    if findings:
        raise Corrupt("verification failed", path=packed_path, found=findings[0].code)
    return "every byte and digest, no problems found", os.path.getsize(packed_path), "bytes"


def _windows(packed_path: str) -> Any:
    from penstock.formats import open_source
    from penstock.order import Shuffle
    from penstock.pack import Chunk

    packed: Any = open_source(packed_path, format="pbin")
    return Shuffle(Chunk(WINDOW_TOKENS, overlap=1)(packed), seed=7)


def _stream(packed_path: str) -> tuple[str, float, str]:
    import itertools

    from penstock.load import Loader

    stream = _windows(packed_path)
    n_windows = len(stream.children()["source"])
    loader = Loader(stream, global_batch=GLOBAL_BATCH, rank=0, world=1)
    n_steps = max(1, n_windows // GLOBAL_BATCH)
    seen = sum(len(batch["tokens"]) for batch in itertools.islice(loader, n_steps))
    return f"{seen:,} shuffled windows of {WINDOW_TOKENS:,} tokens", seen, "windows"


def _resume(packed_path: str) -> tuple[str, float, str]:
    import itertools
    import json

    import numpy as np

    from penstock.errors import ResumeMismatch
    from penstock.load import Loader

    world, n_steps = 4, 8
    whole = Loader(_windows(packed_path), global_batch=GLOBAL_BATCH, rank=0, world=1)
    for _ in itertools.islice(whole, n_steps):
        pass
    state = json.dumps(whole.state_dict())
    expected = [batch["tokens"] for batch in itertools.islice(whole, n_steps)]
    ranks: list[list[Any]] = []
    for rank in range(world):
        loader = Loader(_windows(packed_path), global_batch=GLOBAL_BATCH, rank=rank, world=world)
        loader.load_state_dict(json.loads(state))
        ranks.append([batch["tokens"] for batch in itertools.islice(loader, n_steps)])
    for step in range(n_steps):
        merged = np.stack([ranks[rank][step] for rank in range(world)], axis=1).reshape(GLOBAL_BATCH, -1)
        if not np.array_equal(merged, expected[step]):
            raise ResumeMismatch("the resumed run returned different batches", found=f"step {step}")
    made = f"same {n_steps} batches on {world} ranks after resuming from {len(state)} bytes of state"
    return made, n_steps * GLOBAL_BATCH * world, "windows"


def _report(steps: list[Step], tokenizer_path: str) -> str:
    rows = [(step.name, step.made, f"{step.seconds:.2f} s", step.rate) for step in steps]
    return (
        table(rows, header=("step", "what", "time", "rate"))
        + "\n\nRun the same on your own data:\n"
        + "  penstock index corpus.jsonl\n"
        + f"  penstock pack corpus.jsonl -o corpus.pbin --tokenizer {tokenizer_path} --eos '{EOS}'\n"
        + "  penstock verify corpus.pbin --depth full\n"
        + "Then in Python:\n"
        + "  import penstock as ps\n"
        + f'  windows = ps.Chunk({WINDOW_TOKENS}, overlap=1)(ps.open("corpus.pbin"))\n'
        + f"  for batch in ps.Loader(ps.Shuffle(windows, seed=7), global_batch={GLOBAL_BATCH}): ..."
    )
