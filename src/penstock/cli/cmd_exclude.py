"""`penstock exclude TARGET`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._opening import dataset_argument, planes_option
from penstock.cli._output import counted, emit, follow_links_option, json_option, table


@click.command()
@dataset_argument("target")
@click.option("--key", "keys", multiple=True, help="Key of a sample; several times for several.")
@click.option("--indices", help="File with the indices, from 0: one a line, or .npy.")
@click.option("--where", help="Expression on the fields of a sample, such as: url == 'https://ex.org/17'")
@click.option("--reason", help="Why: stands in the list, beside who and when.")
@click.option("--list", "list_path", help="File of the list, instead of the one beside the data.")
@click.option("--undo", is_flag=True, help="Take them, or all, off the list.")
@click.option("--show", is_flag=True, help="What is excluded, and why.")
@click.option("--also", multiple=True, metavar="MADE", help="Also in what was made of TARGET, in one step or several.")
@click.option("--key-field", help="Field that holds the key, where it is not __key__, key, id, doc_id or url.")
@click.option("--format", help="Format of the target, instead of finding it out.")
@click.option("--split", help="Split of the target, for formats that have splits.")
@click.option("--layout", help="Historical layout, where it is ambiguous.")
@click.option("--eos-id", type=int, help="Id that ends each document, where the data do not say.")
@click.option("--trust", is_flag=True, help="Run code that comes with the data.")
@dry_run_option
@planes_option
@follow_links_option
@json_option
def command(
    target: str, keys: tuple[str, ...], list_path: str | None, show: bool, as_json: bool, **options: Any
) -> None:
    """Exclude samples by a list next to a dataset, for whoever opens it from then on; restart running jobs."""
    import msgspec

    if show:
        _show(target, keys, list_path, options, as_json=as_json)
        return

    from penstock.look.exclude import exclude

    report = exclude(target, key=keys or None, list=list_path, **options)
    changed = (*(report.files or (report,)), *report.also)
    data, lines, lists = msgspec.to_builtins(report), list(map(_line, changed)), [one.path for one in changed]
    if report.added or report.removed:
        lines.append(_RESTART)
    emit_written(data, lines, (target,), lists, options | {"overwrite": True}, as_json=as_json)


def _show(target: str, keys: tuple[str, ...], list_path: str | None, options: dict[str, Any], *, as_json: bool) -> None:
    import msgspec

    from penstock.look.exclude import excluded_samples

    given = [
        name for name in ("indices", "where", "reason", "undo", "also", "key_field", "dry_run") if options.pop(name)
    ]
    if keys or given:
        raise click.UsageError("--show stands without what excludes or undoes")
    found = excluded_samples(target, list=list_path, **options)
    rows = [(str(one.index), one.key or "-", one.reason, one.time, one.who) for one in found.entries]

    def text() -> str:
        lines = [table(rows, header=("index", "key", "reason", "time", "who"))] if rows else []
        return "\n".join([*lines, f"{counted(len(rows), 'sample')} excluded"])

    emit({"path": found.path, "digest": found.digest, "entries": msgspec.to_builtins(found.entries)},
         as_json=as_json, text=text)  # fmt: skip


def _line(report: Any) -> str:
    done = f"{report.removed:,} taken off" if report.removed else f"{report.added:,} added"
    already = f", {report.already:,} as asked for already" if report.already else ""
    return f"{report.path}: {done}{already}; {counted(report.entries, 'sample')} excluded"


_RESTART = "Jobs that have the data open don't read the list: restart them, and they resume exactly."
