"""`penstock status OUT`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from penstock.cli._output import emit, json_option, note
from penstock.cli._sharing import array_expression

if TYPE_CHECKING:
    from penstock.engine.status import WorkStatus
    from penstock.engine.work import Entry


@click.command()
@click.argument("output")
@click.option("--sweep", is_flag=True, help="Remove leftover files that are no longer needed.")
@json_option
def command(output: str, sweep: bool, as_json: bool) -> None:
    """Show progress of an interrupted or distributed job, from any host that can read OUTPUT.

    Exits with 0 if the output is complete, 14 if work is unfinished, and 9 if there is neither.
    """
    import msgspec

    from penstock.engine import status
    from penstock.errors import PrepareError
    from penstock.store.place import place_of

    place = place_of(output)
    if sweep:
        for path in status.sweep(place):
            note(f"removed: {path}")
    found = status.status_of(place)
    emit(msgspec.to_builtins(found), as_json=as_json, text=lambda: _summary(found))
    if not found.complete:
        raise SystemExit(PrepareError.exit_status)


def _summary(found: WorkStatus) -> str:
    left = "".join(f"\n  leftover: {path}" for path in found.left_over)
    if found.plan is None and found.tasks:
        told = f"{found.done:,} of {found.tasks:,} files have an index"
        return f"{found.output}: {told}\n  next: `penstock index --finish`; --no-work lists files without an index"
    if found.plan is None:
        return f"{found.output}: {'complete' if found.complete else 'unfinished, without a plan'}{left}"
    rate = f", {found.rate:.2g} tasks per second" if found.rate else ""
    shares = ""
    if found.shares is not None:
        missing = array_expression(found.missing_shares) or "none"
        shares = f"\n  {found.shares} parts; with missing tasks: {missing}"
    files = f", {found.files:,} {'file' if found.files == 1 else 'files'} assembled" if found.files else ""
    done = f"{found.done:,} of {found.tasks:,} tasks done" if found.tasks else "no tasks, and not committed yet"
    runs = "".join(map(_told, found.failed)) + "".join(map(_told, found.running))
    return f"{found.output}: {done}{files}{rate}{shares}{runs}{left}\n  next: {_next(found)}"


def _next(found: WorkStatus) -> str:
    """Return the next step. Files that a part didn't assemble aren't tasks; the finalize step lists them."""
    if found.shares is None:
        return "re-run the same command to resume"
    if found.missing_shares:
        again = f"re-run the same command with --part I/{found.shares} for {array_expression(found.missing_shares)}"
        return f"{again}, unless they are running; then with --finish, which runs missing parts"
    return "re-run the same command with --finish; --no-work lists parts with unassembled files"


def _told(one: Entry) -> str:
    what = "finalize step" if one.share == "finish" else f"part {one.share}"
    at = datetime.fromtimestamp(one.ended_s or one.began_s, UTC).isoformat(" ", "seconds")
    if one.ended_s is None:
        return f"\n  {what} on {one.host}, process {one.process}: running since {at}, or killed"
    return f"\n  {what} on {one.host}: failed at {at}: {' '.join((one.error or '').split())}"
