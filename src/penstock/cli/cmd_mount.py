"""`penstock mount DIR MOUNTPOINT`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._opening import excludes_option
from penstock.cli._output import emit_line, follow_links_option, json_option


@click.command()
@click.argument("path")
@click.argument("mountpoint")
@click.option(
    "-s", "--sample-folders", is_flag=True, help="A folder for each sample, in place of one file for each part."
)
@click.option("-d", "--detach", is_flag=True, help="Go to the background.")
@click.option("-w", "--allow-slow", is_flag=True, help="Taken from Energon: old indexes need no permission here.")
@excludes_option
@follow_links_option
@json_option
def command(
    path: str,
    mountpoint: str,
    sample_folders: bool,
    detach: bool,
    allow_slow: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the parts of a WebDataset's samples as files, read-only, until Ctrl-C or `fusermount -u MOUNTPOINT`."""
    from penstock.cli._output import note
    from penstock.view.mount import mount

    said = f"{path} at {mountpoint}; unmount with `fusermount -u {mountpoint}`" + ("" if detach else ", or Ctrl-C")

    def ready() -> None:
        if as_json:
            emit_line({"path": path, "mountpoint": mountpoint}, as_json=True, text="")
        else:
            note(said)

    mount(path, mountpoint, by_sample=sample_folders, detach=detach, **options, ready=ready)
