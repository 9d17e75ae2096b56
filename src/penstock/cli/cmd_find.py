"""`penstock find TARGET`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._executors import optional_executor_options
from penstock.cli._opening import excludes_option, opening_options
from penstock.cli._output import emit, follow_links_option, json_option, progress, table
from penstock.cli._samples import warn_of


@click.command()
@click.argument("target", nargs=-1, required=True)
@click.option("--key", metavar="KEY", help="Find the sample with this key.")
@click.option("--text", metavar="TEXT", help="Find samples that contain this text in any field.")
@click.option(
    "--where", metavar="EXPR", help="Find samples that match an expression, such as: lang == 'en' and len(text) > 200"
)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Stop after this many matches.")
@click.option(
    "--key-field", metavar="NAME", show_default="__key__, key, id, doc_id or url", help="Field that holds the key."
)
@click.option(
    "--tokenizer", metavar="NAME", help="A tokenizer.json or its directory, to search tokenized documents with --text."
)
@opening_options("the target")
@excludes_option
@click.option("--trust", is_flag=True, help="Run code stored with the data.")
@optional_executor_options
@follow_links_option
@json_option
def command(target: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Find samples by key, text or expression.

    Prints the index, key and location of each match. Exits with 1 if nothing matches.
    """
    import msgspec

    from penstock.look.find import find

    with progress("find", total=None, unit="samples") as advance:
        report = find(target[0] if len(target) == 1 else target, progress=advance, **options)
    if options["tokenizer"] is not None and len(target) == 1:
        _warn_of_tokenizer(target[0], options)

    def text() -> str:
        rows = [
            (str(one.index), one.key or "-", one.path, (one.place or "-") + ", excluded" * one.excluded)
            for one in report.found
        ]
        read = f"read {report.looked_at:,} of {report.of:,} samples" if report.looked_at else "from the key index"
        return "\n".join([*([table(rows, header=("index", "key", "path", "place"))] * bool(rows)),
                          f"{len(rows):,} found; {read}"])  # fmt: skip

    emit(msgspec.to_builtins(report), as_json=as_json, text=text)
    return 0 if report.found else 1


def _warn_of_tokenizer(target: str, options: dict[str, Any]) -> None:
    from penstock.view.facts.opening import open_target

    names = ("format", "split", "layout", "eos_id", "excludes", "planes", "tokenizer", "follow_links")
    warn_of(open_target(target, **{name: options[name] for name in names}).other_tokenizer)
