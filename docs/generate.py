"""Write the parts of the documentation that are generated from the code.

python docs/generate.py          # tables in README.md and docs/formats/index.md, docs/errors.md, docs/penstock.svg
python docs/generate.py --check  # list files that are out of date; exit 1 if there are any
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from findings import findings_table
from picture import picture

from penstock import errors
from penstock.cli._errors import codes, exit_codes
from penstock.formats import BUILT_IN, get_format

ROOT = Path(__file__).parent.parent
MEASURED = (
    ("Pack 1 GB of JSONL, two workers", "pack_1gb", "Modalities", "gigatoken", "gigatoken, which only encodes"),
    ("Merge packed token files", "merge", "Modalities", "cat and sync", "`cat` and sync"),
    (
        "Random windows of 2,048 tokens, batches of 32",
        "windows",
        "Modalities",
        "numpy gather",
        "a bare numpy gather",
    ),
    ("Random windows of zarr tokens", "flat_tokens_windows", "zarr-python", "mmap", "a bare memory map"),
    ("Image and caption batches", "images", "megatron-energon", "simplejpeg, decoding only", "decoding the JPEGs only"),
    (
        "Shuffled epoch of MDS samples of 4 KB",
        "mds_epoch",
        "mosaicml-streaming",
        "copies from a memory map",
        "slicing a memory map",
    ),
)
"""Rows of the README's table: task, benchmark of `bench/results.json`, peer, and the limit with its description."""
LABELS = {
    "windows": "batches of 32 (Modalities: one at a time)",
    "mds_epoch": "4 KB, one process (peer with its DataLoader)",
}
"""Rows to show of benchmarks whose first row with the peer isn't the task of the table."""

ABILITIES = ("write", "tokens", "keys", "splits", "repair")
"""Columns of the table of formats. All formats are read, also remotely, and verified."""


def main() -> int:
    stale = [path for path, text in generated().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"out of date: {path.relative_to(ROOT)} (run python docs/generate.py)")
        return 1 if stale else 0
    for path in stale:
        path.write_text(generated()[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


def generated() -> dict[Path, str]:
    """Path → what it must hold."""
    readme = ROOT / "README.md"
    formats = ROOT / "docs/formats/index.md"
    return {
        readme: replace_section(readme.read_text(), "measured", measured_table()),
        formats: replace_section(formats.read_text(), "formats", format_table()),
        ROOT / "docs/errors.md": errors_page(),
        ROOT / "docs/penstock.svg": picture(),
    }


def replace_section(text: str, name: str, body: str) -> str:
    """Return `text` with `body` between the two comments of `name`."""
    pattern = re.compile(rf"(<!-- {name}: generated -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    return pattern.sub(lambda match: f"{match[1]}{body}\n{match[2]}", text)


def format_table() -> str:
    """Format × ability, from each format's own traits."""
    lines = ["| format | made by | " + " | ".join(ABILITIES) + " |", "|---|---|" + ":-:|" * len(ABILITIES)]
    for name in BUILT_IN:
        traits = get_format(name).traits
        cells = ("✓" if getattr(traits, ability) else "" for ability in ABILITIES)
        lines.append(f"| [`{name}`]({name}.md) | {traits.made_by} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measured_table() -> str:
    """Return the six rows of `MEASURED`: Penstock, the peer, and the share of the limit."""
    path = ROOT / "bench/results.json"
    questions = json.loads(path.read_text())["questions"] if path.exists() else {}
    lines = ["| task | Penstock | peer | faster by | share of the limit |", "|---|--:|--:|--:|---|"]
    for task, name, peer, limit, description in MEASURED:
        rows = questions[name]["rows"] if name in questions else []
        compared = [row for row in rows if row["other_name"] == peer and row["factor"]]
        if not compared:
            continue
        row = next((one for one in compared if one["what"] == LABELS.get(name)), compared[0])
        bound = next((one for one in rows if limit and one["other_name"] == limit and one["factor"]), None)
        share = f"{bound['factor'] * 100:.0f}% of {description}" if bound else "–"
        ours, other = amount(row["ours"], row["unit"]), f"{amount(row['other'], row['unit'])} ({peer})"
        lines.append(f"| {task} | {ours} | {other} | {amount(row['factor'], '×')} | {share} |")
    return "\n".join(lines)


def amount(value: float, unit: str) -> str:
    """At least three digits of a figure, and its unit."""
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + (unit if unit == "×" else f" {unit}")


def errors_page() -> str:
    """Return the page of errors: classes, codes, exit statuses and findings."""
    lines = [
        "# Errors\n",
        "Every message on a terminal ends with a code, such as `[corrupt]`. With `--json` it is the value of `code`. "
        "`penstock --errors` prints the section [By code](#by-code).\n",
        "A message names the problem, the file and offset, the value found and the one expected, and what to do:\n",
        "```text\nwhat is wrong: where: found …, expected …. What to do. [code]\n```\n",
        "It is one line on standard error, without a traceback (`--debug` shows it). With `--json` the error is one "
        "document on standard output with the keys `code`, `message`, `path`, `place`, `found`, `expected` and `hint`. "
        "Errors of the operating system exit with 18, defects of Penstock with 70.\n",
        "## Classes\n\n```text",
    ]
    lines += (errors.__doc__ or "").split("```")[1].strip("\n").splitlines()
    lines += ["```\n", "| error | code | exit status |", "|---|---|---|"]
    described = ["\n## By code"]
    for code, name, status, text in codes():
        lines += [f"| `{name}` | [`{code}`](#{code}) | {status} |"] if name else []
        described += [f"\n### {code}\n", f"{f'`{name}`, exit' if name else 'Exit'} status {status}. {text}"]
    lines += ["\n## Exit codes\n", "Other than those of the classes above:\n", "| status | meaning |", "|---|---|"]
    known = {status for _, name, status, _ in codes() if name}
    lines += [f"| {status} | {what} |" for status, what in sorted(exit_codes()) if status not in known]
    lines += [
        "\n## Findings\n",
        "`verify` and `repair` report problems in data, each with a code. `<format>` is the format of the dataset. If "
        "an error ends a check, the finding has the error's code after the format, such as `jsonl.unsupported`. "
        "`penstock verify --explain CODE` prints the row of one code.\n",
        *findings_table(),
    ]
    return "\n".join([*lines, *described]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
