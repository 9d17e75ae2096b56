"""`penstock cache`."""

from __future__ import annotations

import re
import sys

import click

from penstock.cli._output import emit, human_bytes, json_option, table

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@click.command()
@click.option("--trim", metavar="SIZE", help="Remove least recently used entries down to this size, such as 50GB.")
@click.option("--clear", is_flag=True, help="Remove everything, except entries that are being written.")
@json_option
def command(trim: str | None, clear: bool, as_json: bool) -> None:
    """Show, trim or clear the cache directory.

    The cache holds copies of remote files and results computed from data. It is $PENSTOCK_CACHE, or penstock in the
    user's cache directory. --trim and --clear are safe while other processes run: open files stay usable, and removed
    entries are recreated when needed.
    """
    from penstock import verbs

    data = verbs.cache(trim=None if trim is None else _bytes(trim), clear=clear)
    rows = [(one["name"], f"{one['files']:,} files", human_bytes(one["size_bytes"])) for one in data["folders"]]
    lines = [f"{data['path']}: {human_bytes(data['size_bytes'])}", *("  " + line for line in table(rows).splitlines())]
    lines += [f"removed {human_bytes(data['removed_bytes'])}"] if trim is not None or clear else []
    emit(data, as_json=as_json, text="\n".join(lines))


def _bytes(given: str) -> int:
    """`50GB` in bytes, in powers of ten."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)b?", given.strip().lower())
    if found is None:
        raise click.BadParameter(f"{given!r} is not a size such as 50GB.", param_hint="--trim")
    return int(min(float(found[1]) * _UNITS[found[2]], sys.maxsize))
