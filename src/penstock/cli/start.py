"""Commands to begin with: demo, doctor, and completion."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from penstock.cli._help import VARIABLE
from penstock.cli._options import takes
from penstock.cli._output import note
from penstock.cli._reports import emit, table
from penstock.view.draw.words import human_bytes

WINDOW_TOKENS = 2048


VOCAB_SIZE = 16_384


GLOBAL_BATCH = 64


_TRAIN_BYTES = 8_000_000


EOS = "<|endoftext|>"


_SPLITS = ("train", "validation", "val", "test")


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step: its summary, duration and rate."""

    name: str
    made: str
    seconds: float
    rate: str


@click.command()
@click.argument("folder", default="penstock-demo")
@takes("overwrite", overwrite="Replace the files of an earlier demo.")
@click.option("--max-mb", type=click.FloatRange(min=0.1), help="Use at most this many MB of text.")
def demo(folder: str, overwrite: bool, max_mb: float | None) -> None:
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
    steps = [
        _timed("gather", lambda: _gather(text_path, max_mb)),
        _timed("index", lambda: _index(text_path)),
        _timed("train a tokenizer", lambda: _train(text_path, tokenizer_path)),
        _timed("pack", lambda: _pack(text_path, packed_path, tokenizer_path)),
        _timed("verify", lambda: _verify(packed_path)),
        _timed("stream an epoch", lambda: _stream(packed_path)),
        _timed("stop and resume", lambda: _resume(packed_path)),
    ]
    emit({"folder": folder, "steps": steps}, lambda: _demo_text(steps, tokenizer_path))


def _timed(name: str, work: Callable[[], tuple[str, float, str]]) -> Step:
    """Run a step: `work` returns a summary, an amount, and the unit of its rate."""
    note(f"{name} …")
    started = time.perf_counter()
    made, amount, unit = work()
    seconds = time.perf_counter() - started
    rate = human_bytes(amount / seconds) + "/s" if unit == "bytes" else f"{amount / seconds:,.0f} {unit}/s"
    return Step(name, made, seconds, rate)


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


def _demo_text(steps: list[Step], tokenizer_path: str) -> str:
    rows = [(step.name, step.made, f"{step.seconds:.2f} s", step.rate) for step in steps]
    return (
        table(rows, header=("step", "what", "time", "rate"))
        + "\n\nRun the same on your own data:\n"
        + "  penstock index corpus.jsonl\n"
        + f"  penstock pack corpus.jsonl -o corpus.pbin --tokenizer {tokenizer_path} --eos '{EOS}'\n"
        + "  penstock verify corpus.pbin --depth full\n"
        + "Then in Python:\n"
        + "  import penstock as ps\n"
        + f'  windows = ps.Chunk({WINDOW_TOKENS}, labels="shift")(ps.open("corpus.pbin"))\n'
        + f"  for batch in ps.Loader(ps.Shuffle(windows, seed=7), global_batch={GLOBAL_BATCH}): ..."
    )


# --- doctor ------------------------------------------------------------------------------------------------------


@click.command()
def doctor() -> None:
    """Show versions, extras, plug-ins, limits, the cache and settings of this machine."""
    from penstock.cli._machine import facts

    found = facts()
    emit(found, lambda: _doctor_text(found))


def _doctor_text(found: dict[str, Any]) -> str:
    cache = found["cache"]
    rows = [(name, version or "not installed") for name, version in found["versions"].items()]
    missing = [f"{extra} ({', '.join(lacks)})" for extra, lacks in found["extras"].items() if lacks]
    rows += [("extras", ", ".join(extra for extra, lacks in found["extras"].items() if not lacks) or "none")]
    rows += [("missing extras", ", ".join(missing) or "none"), ("engines", ", ".join(found["engines"]) or "none")]
    rows += [("plug-ins", ", ".join(map(_plug_in_text, found["plug_ins"])) or "none")]
    rows += [("cores", str(found["cores"])), ("open files", _limit_text(found["limits"]["open_files"]))]
    rows += [("memory limit", _limit_text(found["limits"]["memory_bytes"], human_bytes))]
    rows += [("this directory", f"{found['folder']['path']} on {found['folder']['file_system']}")]
    if cache["path"] is not None:
        rows += [("cache", f"{cache['path']} on {cache['file_system']}, {human_bytes(cache['size_bytes'])}")]
        rows += [("free for the cache", human_bytes(cache["free_bytes"]))]
    rows += [("problem", fault) for fault in found["faults"]]
    file = found["settings_file"]
    rows += [("settings file", f"{file['path'] or 'none'}{'' if file['is_there'] else ' (missing)'}")]
    origins = found["settings_from"]
    settings = [(name, _setting_text(value, origins.get(name))) for name, value in found["settings"].items()]
    width = max(len(name) for name, _ in [*rows, *settings])
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in [*rows, *settings])


def _setting_text(value: str | None, where: str | None) -> str:
    return "not set" if where is None else f"{value or 'empty'}, from {where}"


def _plug_in_text(found: dict[str, str | None]) -> str:
    fault = f": {found['fault']}" if found["fault"] else ""
    return f"{found['kind']} {found['name']} from {found['package'] or 'an unknown package'}{fault}"


def _limit_text(value: int | None, shown: Any = "{:,}".format) -> str:
    return "no limit" if value is None else shown(value)


# --- completion --------------------------------------------------------------------------------------------------


@click.command(hidden=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script that completes commands, options, paths, formats and splits.

    Append it to your shell's startup file.

    For fish: `penstock completion fish > ~/.config/fish/completions/penstock.fish`.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"Completion isn't available for {shell}.")
    # Not bash's own method, which runs bash to learn its version: this machine may have none.
    script = ShellComplete.source(kind(click.get_current_context().find_root().command, {}, "penstock", VARIABLE))
    emit({"shell": shell, "script": script}, script)


class CompletedText(click.types.StringParamType):
    """Text that a shell completes: a format, a split or a path."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the possible values."""
        if param.name in ("format", "format_name", "to"):
            from penstock.formats import format_names

            known = format_names()
        elif param.name in ("split", "source_split", "split_parts"):
            known = sorted({*_SPLITS, *_folders(ctx.params)})
        else:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def completing(command: click.Command) -> click.Command:
    """Let a shell complete the texts of a command."""
    for param in command.params:
        if type(param.type) is click.types.StringParamType:
            param.type = CompletedText()
    return command


def _folders(given: dict[str, Any]) -> list[str]:
    """Return the directories in the dataset that the line names already."""
    named = (*(given.get(name) for name in ("path", "source")), *(given.get("paths") or ()))
    path = next((one for one in named if isinstance(one, str)), None)
    if path is None or not os.path.isdir(path):
        return []
    return [one.name for one in os.scandir(path) if one.is_dir() and not one.name.startswith(".")]
