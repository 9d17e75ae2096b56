"""Run the benchmarks in this folder, one file each, and write `RESULTS.md` and `results.json`.

    make bench
    python bench/run.py [benchmark …] [--quick] [--large]
    python bench/run.py --against REV [row …] [--pairs N]

Results of other benchmarks are kept, with their own date. `--against` compares with another commit instead of peers,
and only prints its table.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import against
from harness import BENCH, Failed, NotRun, Options

QUESTIONS = (
    "startup",
    "index_100mb",
    "index_1gb_no_validate",
    "pack_100mb",
    "pack_1gb",
    "pack_chat",
    "merge",
    "shuffle",
    "chunk",
    "filter",
    "windows",
    "loader",
    "block_mask",
    "open_100g",
    "resume",
    "flat_tokens_windows",
    "flat_tokens_cold",
    "flat_tokens_whole",
    "convert",
    "convert_ids",
    "best_fit",
    "many",
    "blend",
    "energon_loading",
    "mds_start",
    "mds_epoch",
    "mds_random",
    "mds_write",
    "shards_text",
    "mds_remote",
    "mds_locality",
    "webdataset_prepare",
    "webdataset_read",
    "image_headers",
    "images",
    "gpu",
)
_PACKAGES = ("penstock-data", "numpy", "gigatoken", "tokenizers", "torch", "zarr", "numcodecs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write and print. A missed target is printed but isn't an error; a failed benchmark is."""
    parser = argparse.ArgumentParser(description="Run benchmarks. Each benchmark is a file in this folder.")
    parser.add_argument("names", nargs="*", help=f"benchmarks to run [default: all]: {', '.join(QUESTIONS)}")
    parser.add_argument("--quick", action="store_true", help="run one pair of everything, for rough figures")
    parser.add_argument("--large", action="store_true", help="also run benchmarks that take many minutes")
    parser.add_argument(
        "--against",
        metavar="REV",
        help=f"compare whole commands with those of another commit; rows: {', '.join(against.ROWS)}",
    )
    parser.add_argument(
        "--pairs", type=int, default=against.PAIRS, help="pairs of runs with --against [default: %(default)s]"
    )
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(against.ROWS if chosen.against else QUESTIONS))
    if unknown:
        parser.error(f"unknown benchmarks: {', '.join(unknown)}")
    if chosen.against:
        if chosen.pairs < against.PAIRS:
            parser.error(f"--pairs must be at least {against.PAIRS}")
        return against.run(chosen.against, chosen.names, chosen.pairs)
    options = Options(quick=chosen.quick, large=chosen.large)
    results: dict[str, Any] = _read()
    without: dict[str, str] = {}
    failed = False
    for name in chosen.names or QUESTIONS:
        print(f"{name} …", flush=True)
        try:
            results[name] = _one(name, options)
        except (NotRun, Failed) as reason:
            failed |= isinstance(reason, Failed)
            without[name] = f"{'FAILED' if isinstance(reason, Failed) else 'NOT RUN'}: {reason}"
            print(f"  {without[name]}", flush=True)
            continue
        print(_table(results[name]["rows"]), flush=True)
        _write({name: results[name] for name in QUESTIONS if name in results})
    print(_verdict(results, chosen.names or QUESTIONS, without))
    return int(failed)


def _one(name: str, options: Options) -> dict[str, Any]:
    result = importlib.import_module(name).run(options).as_json()
    flags = "".join(f" --{flag}" for flag in ("quick", "large") if getattr(options, flag))
    return result | {
        "command": f"python bench/run.py {name}{flags}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": _machine(),
    }


def _machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return (
        f"{os.cpu_count()} cores ({_processor()}), {memory_gb:.0f} GB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _read() -> dict[str, Any]:
    path = BENCH / "results.json"
    return json.loads(path.read_text())["questions"] if path.exists() else {}


def _write(results: Mapping[str, Any]) -> None:
    (BENCH / "results.json").write_text(json.dumps({"questions": results}, indent=1, ensure_ascii=False) + "\n")
    machine = _machine()
    lines = [
        "# Results",
        "",
        "Penstock and a peer are run in turn, in the same run on the same machine. Figures are medians, and the factor",
        "is the median of the factors of all pairs. A factor above 1 means that Penstock is better. Peers are the",
        "packages from PyPI (modalities 0.5.0, mosaicml-streaming 0.13.0), each in its own environment. `make bench`",
        "repeats all measurements, and the command under a table repeats that table. This file is written by",
        "`bench/run.py`.",
        "",
        f"Machine: {machine}.",
    ]
    for result in results.values():
        lines += ["", f"## {result['title']}", "", *_markdown(result["rows"]), ""]
        lines += [f"- {note}" for note in result["notes"]]
        other_machine = "" if result["machine"] == machine else f", {result['machine']}"
        lines += [f"- {result['date']}, `{result['command']}`{other_machine}"]
    (BENCH / "RESULTS.md").write_text("\n".join(lines) + "\n")


def _markdown(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    table = ["| | Penstock | peer | | factor | target | |", "|---|---|---|---|---|---|---|"]
    return table + [f"| {' | '.join(_cells(row))} |" for row in rows]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join("  " + "  ".join(cell for cell in _cells(row) if cell) for row in rows)


def _cells(row: Mapping[str, Any]) -> list[str]:
    ours = _figure(row["ours"], row["unit"])
    met = {None: "reported", True: "met", False: "**MISSED**"}[row["met"]]
    if row["other"] is None:
        at_most = "" if row["target"] is None else f"at most {_figure(row['target'], row['unit'])}"
        return [row["what"], ours, "", "", "", at_most, met]
    target = "" if row["target"] is None else f"at least {row['target']:g}"
    other = _figure(row["other"], row["unit"])
    return [row["what"], ours, other, row["other_name"], f"{_number(row['factor'])}×", target, met]


def _figure(value: float, unit: str) -> str:
    if unit == "s" and value < 0.1:
        return f"{_number(value * 1000)} ms"
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _verdict(results: Mapping[str, Any], names: Sequence[str], without: Mapping[str, str]) -> str:
    rows = [row for name in names if name not in without for row in results[name]["rows"]]
    missed = [row for row in rows if row["met"] is False]
    met = sum(row["met"] is True for row in rows)
    lines = ["", f"{met} targets met, {len(missed)} missed, {len(without)} benchmarks not run"]
    lines += [f"  MISSED: {'  '.join(cell for cell in _cells(row) if cell)}" for row in missed]
    lines += [f"  {name} {reason.strip().splitlines()[-1]}" for name, reason in without.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
