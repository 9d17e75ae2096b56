"""`penstock mount DIR MOUNTPOINT`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._opening import excludes_option
from penstock.cli._output import emit_line, follow_links_option, json_option


@click.command()
@click.argument("path")
@click.argument("mountpoint")
@click.option("-s", "--sample-folders", is_flag=True, help="Show a directory per sample instead of one file per part.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
@excludes_option
@follow_links_option
@json_option
def command(
    path: str,
    mountpoint: str,
    sample_folders: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Mount a WebDataset as a read-only file system.

    Each part of a sample is a file. Unmount with Ctrl-C or `fusermount -u MOUNTPOINT`.
    """
    from penstock.cli._output import note
    from penstock.view.mount import mount

    said = f"{path} at {mountpoint}; unmount with `fusermount -u {mountpoint}`" + ("" if detach else ", or Ctrl-C")

    def ready() -> None:
        if as_json:
            emit_line({"path": path, "mountpoint": mountpoint}, as_json=True, text="")
        else:
            note(said)

    mount(path, mountpoint, by_sample=sample_folders, detach=detach, **options, ready=ready)
