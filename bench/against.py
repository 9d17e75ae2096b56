"""Compare today's source with another commit: whole commands of both versions, run in turn.

    python bench/run.py --against REV [row …] [--pairs N]

Rows use only commands and options that both versions have. A row that the other commit can't run isn't comparable.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import data
import tars
from harness import DATA, PYTHON, ROOT, Cost, Failed, alternate, command_cost
from whole import penstock

import convert

PAIRS = 5
REQUIRED = 0.95
"""Smallest speed of today's source, relative to the other commit, that passes."""

Command = Callable[[Path], Sequence[object]]
"""Takes an empty directory for outputs, creates inputs there if needed, and returns the command to time."""

_WORKERS = ("--workers", 2)
_WIDTHS = (42, 10, 10, 22, 22, 4)


@dataclass(frozen=True, slots=True)
class Version:
    """A source tree, and its own cache directory."""

    source: Path
    cache: Path

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables with which commands use this version, and keep the modules that they compile."""
        cache = {"PENSTOCK_CACHE": str(self.cache), "PYTHONDONTWRITEBYTECODE": ""}
        return {"PYTHONPATH": str(self.source), **cache}


class NotComparable(Exception):
    """The other commit can't run a row. The message has the reason."""


def _filter(*arguments: object) -> Command:
    return lambda out: penstock("filter", data.packed_tokens(), "-o", out / "filtered.pbin", *arguments)


def _merge(*arguments: object) -> Command:
    packed = data.packed_tokens
    return lambda out: penstock("merge", packed(), packed(), "-o", out / "merged.pbin", *arguments)


def _shuffle(*arguments: object) -> Command:
    return lambda out: penstock("shuffle", data.packed_tokens(), "-o", out / "shuffled.pbin", "--seed", 7, *arguments)


def _split(source: Callable[[], Path]) -> Command:
    return lambda out: penstock("split", source(), "-o", out / "parts", "--ratio", "8,1,1")


def _convert(source: Callable[[], Path], to: str, *arguments: object) -> Command:
    return lambda out: penstock("convert", source(), out / "converted", "--to", to, *arguments)


def _flat_tokens() -> Path:
    return convert.converted(data.packed_tokens(), "flat-tokens")


def _prepare(out: Path) -> Sequence[object]:
    _link_files(tars.small(), out, "*.tar")
    return penstock("energon", "prepare", out, "--non-interactive", "--split-ratio", "1,0,0", "--no-progress")


def _prepare_media(out: Path) -> Sequence[object]:
    _link_files(tars.images(), out, "*")
    return penstock("prepare-media", out)


def _link_files(source: Path, target: Path, pattern: str) -> None:
    for file in source.glob(pattern):
        os.link(file, target / file.name)


def _pack(out: Path) -> Sequence[object]:
    options = ("--tokenizer", data.tokenizer(), "--eos", data.EOS, *_WORKERS)
    return penstock("pack", data.text(), "-o", out / "packed.pbin", *options)


ROWS: Mapping[str, Mapping[str, Command]] = {
    "startup": {"--help": lambda out: penstock("--help")},
    "index_100mb": {
        "100 MB of JSONL": lambda out: penstock("index", data.text(), "--index-path", out / "text.idx"),
    },
    "pack_100mb": {"100 MB of JSONL, 2 workers": _pack},
    "filter": {
        "1 M documents": _filter("--min-tokens", 40),
        "1 M documents, 2 workers": _filter("--min-tokens", 40, *_WORKERS),
        "100 MB of JSONL": lambda out: penstock(
            "filter", data.text(), "-o", out / "filtered.jsonl", "--where", "len(text) > 1500"
        ),
    },
    "merge": {
        "two files of 128 MB": _merge(),
        "two files of 128 MB, 2 workers": _merge(*_WORKERS),
        "two JSONL files of 100 MB": lambda out: penstock(
            "merge", data.text(), data.text(), "-o", out / "merged.jsonl"
        ),
    },
    "shuffle": {
        "1 M documents": _shuffle(),
        "1 M documents, 2 workers": _shuffle(*_WORKERS),
        "100 MB of JSONL": lambda out: penstock("shuffle", data.text(), "-o", out / "shuffled.jsonl", "--seed", 7),
    },
    "split": {"1 M documents": _split(data.packed_tokens), "100 MB of JSONL": _split(data.text)},
    "convert": {
        "pbin → flat-tokens": _convert(data.packed_tokens, "flat-tokens"),
        "pbin → megatron": _convert(data.packed_tokens, "megatron"),
        "pbin → megatron, 2 workers": _convert(data.packed_tokens, "megatron", *_WORKERS),
        "flat-tokens → pbin": _convert(_flat_tokens, "pbin"),
        "JSONL → mds, 2 workers": _convert(data.text, "mds", *_WORKERS),
    },
    "prepare": {"40,000 samples of 2 KB": _prepare},
    "prepare_media": {"2,000 images": _prepare_media},
    "verify": {"1 M documents, every byte": lambda out: penstock("verify", data.packed_tokens(), "--depth", "full")},
}
"""Name → description of each row → its command."""


def run(revision: str, names: Sequence[str], pairs: int) -> int:
    """Measure rows and print them. Return 1 if a row fails."""
    DATA.mkdir(exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="against-", dir=DATA) as name:
        folder = Path(name)
        new = Version(ROOT / "src", folder / "cache-new")
        old = Version(_export(revision, folder / "old"), folder / "cache-old")
        for version in (new, old):
            _require_import(version)
        _print("row", revision[:10], "now", "ratio (min–max)", "CPU ratio (min–max)")
        for group in names or ROWS:
            for what, command in ROWS[group].items():
                try:
                    costs = _measure(command, new, old, folder / "out", pairs)
                except NotComparable as reason:
                    _print(f"{group}: {what}", f"not comparable: {reason}")
                except Failed as reason:
                    failed += 1
                    _print(f"{group}: {what}", f"FAIL: {reason}")
                else:
                    failed += not _report(f"{group}: {what}", costs)
    print(f"{failed} failed. The ratio is the time of {revision} divided by the time now; {REQUIRED} or more passes.")
    return int(failed > 0)


def _measure(command: Command, new: Version, old: Version, out: Path, pairs: int) -> Sequence[tuple[Cost, Cost]]:
    """Return pairs of costs (new, old), after one run of each version that compiles its modules."""

    def cost(version: Version) -> Cost:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return command_cost(command(out), version.variables)

    cost(new)
    try:
        cost(old)
    except Failed as error:
        raise NotComparable(str(error).strip().splitlines()[-1]) from error
    return alternate(lambda: cost(new), lambda: cost(old), pairs)


def _report(label: str, costs: Sequence[tuple[Cost, Cost]]) -> bool:
    """Print a row. Return whether it passes."""
    ratios = [old.seconds / new.seconds for new, old in costs]
    passes = statistics.median(ratios) >= REQUIRED
    _print(
        label,
        f"{statistics.median(old.seconds for _, old in costs):.3f} s",
        f"{statistics.median(new.seconds for new, _ in costs):.3f} s",
        _range(ratios),
        _range([old.cpu_seconds / new.cpu_seconds for new, old in costs]),
        "pass" if passes else "FAIL",
    )
    return passes


def _range(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def _print(*cells: str) -> None:
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False)).rstrip(), flush=True)


def _export(revision: str, folder: Path) -> Path:
    """Write the source of a commit to `folder`, and return the directory to import from."""
    done = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"can't read the source of {revision}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def _require_import(version: Version) -> None:
    """Exit if Python imports another `penstock` than this version's."""
    code = "import penstock; print(penstock.__file__)"
    environment = {**os.environ, **version.variables}
    done = subprocess.run([PYTHON, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True)
    if not Path(done.stdout.strip()).is_relative_to(version.source):
        raise SystemExit(f"expected penstock from {version.source}, found {done.stdout.strip()}")
