"""How much longer than a bare interpreter does `penstock --help` take?"""

from __future__ import annotations

from harness import PENSTOCK, PYTHON, Options, Result, alternate, command_seconds, limit, row
from peers import modalities

AT_MOST_MS = 150
_STARTS = 15


def run(options: Options) -> Result:
    """Run `penstock --help` in turn with a bare interpreter, then with Modalities."""
    pairs = alternate(
        lambda: command_seconds([PENSTOCK, "--help"]),
        lambda: command_seconds([PYTHON, "-c", "pass"]),
        _STARTS,
    )
    above = [1000 * (ours - bare) for ours, bare in pairs]
    theirs = alternate(
        lambda: command_seconds([PENSTOCK, "--help"]),
        lambda: command_seconds(modalities.command("data", "--help")),
        options.pairs(3),
    )
    return Result(
        "Command-line startup",
        [
            limit("penstock --help, minus the startup of Python", "ms", above, AT_MOST_MS),
            row("penstock --help (Modalities: modalities data --help)", "s", theirs, modalities.NAME),
        ],
    )
