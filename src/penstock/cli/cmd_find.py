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
@click.option("--key", help="Key of the sample that is looked for.")
@click.option("--text", help="Text that stands in a text of the sample.")
@click.option("--where", help="Expression on the fields of a sample, such as: lang == 'en' and len(text) > 200")
@click.option("--limit", type=click.IntRange(min=1), help="No more than so many, the first ones.")
@click.option("--key-field", help="Field that holds the key, where it is not __key__, key, id, doc_id or url.")
@click.option("--tokenizer", help="tokenizer.json or its folder: what --text means in documents of tokens.")
@opening_options("the target")
@excludes_option
@click.option("--trust", is_flag=True, help="Run code that comes with the data.")
@optional_executor_options
@follow_links_option
@json_option
def command(target: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Find samples by key, text or expression: their indices, keys and places. Exits with 1 where there is none."""
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
        read = f"read {report.looked_at:,} of {report.of:,}" if report.looked_at else "by the index of keys"
        return "\n".join([*([table(rows, header=("index", "key", "path", "place"))] * bool(rows)),
                          f"{len(rows):,} found; {read}"])  # fmt: skip

    emit(msgspec.to_builtins(report), as_json=as_json, text=text)
    return 0 if report.found else 1


def _warn_of_tokenizer(target: str, options: dict[str, Any]) -> None:
    from penstock.view.facts.opening import open_target

    names = ("format", "split", "layout", "eos_id", "excludes", "planes", "tokenizer", "follow_links")
    warn_of(open_target(target, **{name: options[name] for name in names}).other_tokenizer)
