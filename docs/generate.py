"""Write the parts of the documentation that are generated from the code.

python docs/generate.py          # tables in README.md, docs/errors.md, docs/penstock.svg
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
PROMISES = {
    "A refusal is one line on stderr that names the file, without a traceback (`--debug` shows it)": (
        "tests/cli/test_main.py::test_a_refusal_names_the_file_and_shows_no_traceback"
    ),
    "An unexpected exception is one line and status 70": (
        "tests/cli/test_main.py::test_what_nobody_thought_of_is_one_line_and_a_status_of_its_own"
    ),
    "Each status has one meaning": "tests/cli/test_main.py::test_exit_codes_differ",
    "With `--json` an error is one document on stdout, of code, message, path, place, found, expected and hint": (
        "tests/first_hour/test_mistakes.py::test_an_error_is_one_json_document_too"
    ),
    "What changed under its side file on this machine's disk is not copied: `convert`, `merge`, `shuffle`, `split`, "
    "`filter`, `chunk` of tokens and JSONL, alone, by workers and in shares": (
        "tests/reshape/test_proof.py::test_a_flipped_bit_is_not_copied"
    ),
    "What the system refuses, at any call of any verb, is 18 and names the file that it has; 1 is only a finding": (
        "tests/crash/test_each_fault.py::test_every_verb_says_what_failed"
    ),
}
SHOWN = (
    "index_100mb",
    "pack_1gb",
    "merge",
    "filter",
    "loader",
    "open_100g",
    "energon_loading",
    "mds_start",
    "mds_epoch",
    "webdataset_prepare",
)
"""The questions of the README's table."""

ABILITIES = ("read", "write", "tokens", "keys", "splits", "remote", "verify", "repair")


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
    text = replace_section(readme.read_text(), "formats", format_table())
    text = replace_section(text, "measured", measured_table())
    return {
        readme: text,
        ROOT / "docs/errors.md": errors_page(),
        ROOT / "docs/penstock.svg": picture(),
    }


def replace_section(text: str, name: str, body: str) -> str:
    """`text` with what stands between the two comments of `name` replaced."""
    pattern = re.compile(rf"(<!-- {name}: generated -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + body + match[2], text)


def format_table() -> str:
    """Format × ability, from each format's own traits."""
    lines = ["| format | made by | " + " | ".join(ABILITIES) + " |", "|---|---|" + ":-:|" * len(ABILITIES)]
    for name in BUILT_IN:
        traits = get_format(name).traits
        cells = ("●" if ability == "read" or getattr(traits, ability) else "" for ability in ABILITIES)
        lines.append(f"| [`{name}`](docs/formats/{name}.md) | {traits.made_by} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measured_table() -> str:
    """The first row of ten questions of `bench/results.json`, and how many aims are met."""
    path = ROOT / "bench/results.json"
    questions = json.loads(path.read_text())["questions"] if path.exists() else {}
    lines = ["| question | Penstock | beside | factor | aim |", "|---|---|---|---|---|"]
    for question in (questions[name] for name in SHOWN if name in questions):
        row = next(row for row in question["rows"] if row["target"] is not None)
        other = "" if row["other"] is None else f"{amount(row['other'], row['unit'])} ({row['other_name']})"
        factor = "" if row["factor"] is None or row["at_most"] else amount(row["factor"], "×")
        aim = f"≤ {amount(row['target'], row['unit'])}" if row["at_most"] else f"≥ {amount(row['target'], '×')}"
        missed = "" if row["met"] else ", **missed**"
        cells = (f"{question['title']}: {row['what']}", amount(row["ours"], row["unit"]), other, factor, aim + missed)
        lines.append("| " + " | ".join(cells) + " |")
    aimed = [(one["title"], row) for one in questions.values() for row in one["rows"] if row["target"] is not None]
    missed = [f"{title}: {row['what']}" for title, row in aimed if not row["met"]]
    summary = f"Of {len(aimed)} aims {len(aimed) - len(missed)} are met"
    return "\n".join([*lines, "", f"{summary}; missed: {'; '.join(missed)}." if missed else f"{summary}."])


def amount(value: float, unit: str) -> str:
    """At least three digits of a figure, and its unit."""
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + (unit if unit == "×" else f" {unit}")


def errors_page() -> str:
    """The exception tree with codes and exit statuses."""
    page = "`penstock --errors` prints what stands under By code."
    lines = [
        "# Errors\n",
        f"A message on a terminal ends with its code, such as `[corrupt]`; JSON has it too. {page}\n\n```text",
    ]
    lines += (errors.__doc__ or "").split("```")[1].strip("\n").splitlines()
    lines += ["```\n", "| error | code | exit status |", "|---|---|---|"]
    described = ["\n## By code"]
    for code, name, status, text in codes():
        lines += [f"| `{name}` | [`{code}`](#{code}) | {status} |"] if name else []
        described += [f"\n### {code}\n", f"{f'`{name}`, exit' if name else 'Exit'} status {status}. {text}"]
    lines += ["\n## Exit codes\n", "| status | meaning |", "|---|---|"]
    lines += [f"| {status} | {what} |" for status, what in sorted(exit_codes())]
    lines += [
        "\n## Findings\n",
        "`verify`, `lint` and `repair` name each problem by a code. `<format>` is the format of the dataset.\n",
        *findings_table(),
    ]
    lines += ["\n## What is promised\n", "| promise | held by |", "|---|---|"]
    lines += [f"| {promise} | `{test}` |" for promise, test in PROMISES.items()]
    return "\n".join([*lines, *described]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
