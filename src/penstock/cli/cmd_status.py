"""`penstock status OUT`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from penstock.cli._output import emit, json_option, note
from penstock.cli._sharing import array_expression

if TYPE_CHECKING:
    from penstock.work.log import Entry
    from penstock.work.status import WorkStatus


@click.command()
@click.argument("output")
@click.option("--sweep", is_flag=True, help="Remove what is left over.")
@json_option
def command(output: str, sweep: bool, as_json: bool) -> None:
    """Show how far work on an output is, from any host that sees it.

    Ends with 0 where the output is complete, 14 where work is unfinished, 9 where nothing is.
    """
    import msgspec

    from penstock.errors import PrepareError
    from penstock.store.place import place_of
    from penstock.work import status

    place = place_of(output)
    if sweep:
        for path in status.sweep(place):
            note(f"removed: {path}")
    found = status.status_of(place)
    emit(msgspec.to_builtins(found), as_json=as_json, text=lambda: _summary(found))
    if not found.complete:
        raise SystemExit(PrepareError.exit_status)


def _summary(found: WorkStatus) -> str:
    left = "".join(f"\n  left over: {path}" for path in found.left_over)
    if found.plan is None and found.tasks:
        told = f"{found.done:,} of {found.tasks:,} files have an index"
        return f"{found.output}: {told}\n  next: `penstock index` with --finish; with --no-work it names the others"
    if found.plan is None:
        return f"{found.output}: {'complete' if found.complete else 'unfinished, without a plan'}{left}"
    rate = f", {found.rate:.2g} tasks a second" if found.rate else ""
    shares = ""
    if found.shares is not None:
        missing = array_expression(found.missing_shares) or "none"
        shares = f"\n  {found.shares} shares; with missing tasks: {missing}"
    files = f", {found.files:,} {'file' if found.files == 1 else 'files'} assembled" if found.files else ""
    done = f"{found.done:,} of {found.tasks:,} tasks done" if found.tasks else "no tasks, and not committed yet"
    runs = "".join(map(_told, found.failed)) + "".join(map(_told, found.running))
    return f"{found.output}: {done}{files}{rate}{shares}{runs}{left}\n  next: {_next(found)}"


def _next(found: WorkStatus) -> str:
    """What an engineer does now. Files that a share did not assemble are not among its tasks: a finisher names them."""
    if found.shares is None:
        return "the same command goes on where it stopped"
    if found.missing_shares:
        again = f"the same command with --part I/{found.shares} for {array_expression(found.missing_shares)}"
        return f"{again}, unless they are at work; then with --finish, which does what is still missing"
    return "the same command with --finish; with --no-work it lists shares whose files are not assembled"


def _told(one: Entry) -> str:
    what = "finish" if one.share == "finish" else f"share {one.share}"
    at = datetime.fromtimestamp(one.ended_s or one.began_s, UTC).isoformat(" ", "seconds")
    if one.ended_s is None:
        return f"\n  {what} on {one.host}, process {one.process}: at work since {at}, or killed"
    return f"\n  {what} on {one.host}: failed at {at}: {' '.join((one.error or '').split())}"
