"""`penstock exclude TARGET`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._dry import dry_run_option, emit_written
from penstock.cli._opening import dataset_argument, opening_options
from penstock.cli._output import counted, emit, follow_links_option, json_option, table


@click.command()
@dataset_argument("target")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="Sample with this key; can be given several times.")
@click.option("--indices", metavar="FILE", help="Samples at the indices (from 0) in this file: one per line, or .npy.")
@click.option("--where", metavar="EXPR", help="Samples that match an expression, such as: url == 'https://ex.org/17'")
@click.option("--reason", metavar="TEXT", help="Reason to record, along with the user and time.")
@click.option(
    "--excludes",
    "list_path",
    metavar="FILE",
    show_default="next to the dataset",
    help="The exclude list to change or show.",
)
@click.option("--undo", is_flag=True, help="Remove the selected samples, or all, from the exclude list.")
@click.option("--show", is_flag=True, help="List excluded samples and the reasons.")
@click.option(
    "--also",
    multiple=True,
    metavar="DERIVED",
    help="Also exclude them in a dataset made from TARGET, directly or in several steps; can be given several times.",
)
@click.option(
    "--key-field", metavar="NAME", show_default="__key__, key, id, doc_id or url", help="Field that holds the key."
)
@opening_options("the target")
@click.option("--trust", is_flag=True, help="Run code stored with the data.")
@dry_run_option
@follow_links_option
@json_option
def command(
    target: str, keys: tuple[str, ...], list_path: str | None, show: bool, as_json: bool, **options: Any
) -> None:
    """Exclude samples from a dataset without rewriting it.

    Excluded samples are recorded in a list next to the dataset and skipped whenever it is opened. Running jobs have to
    be restarted. To delete the samples, run `penstock purge`.
    """
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
        raise click.UsageError("--show can't be combined with options that select or change samples.")
    found = excluded_samples(target, list=list_path, **options)
    rows = [(str(one.index), one.key or "-", one.reason, one.time, one.who) for one in found.entries]

    def text() -> str:
        lines = [table(rows, header=("index", "key", "reason", "time", "who"))] if rows else []
        return "\n".join([*lines, f"{counted(len(rows), 'sample')} excluded"])

    emit({"path": found.path, "digest": found.digest, "entries": msgspec.to_builtins(found.entries)},
         as_json=as_json, text=text)  # fmt: skip


def _line(report: Any) -> str:
    done = f"{report.removed:,} removed from the list" if report.removed else f"{report.added:,} added"
    already = f", {report.already:,} unchanged" if report.already else ""
    return f"{report.path}: {done}{already}; {counted(report.entries, 'sample')} excluded"


_RESTART = "Running jobs don't see the change: restart them, and they resume exactly."
