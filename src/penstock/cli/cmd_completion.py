"""`penstock completion SHELL`."""

from __future__ import annotations

import click

from penstock.cli._output import emit, json_option


@click.command(hidden=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def command(shell: str, as_json: bool) -> None:
    """Print a script that completes commands, options, paths, formats and splits.

    Append it to your shell's startup file.

    For fish: `penstock completion fish > ~/.config/fish/completions/penstock.fish`.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    from penstock.cli.main import VARIABLE

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"Completion isn't available for {shell}.")
    # The base, as bash's own asks bash for its version first: there may be none on the machine that this is made on.
    script = ShellComplete.source(kind(click.get_current_context().find_root().command, {}, "penstock", VARIABLE))
    emit({"shell": shell, "script": script}, as_json=as_json, text=script)
