"""Commands that show datasets elsewhere: in a browser, as a page, as a file system."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from penstock.cli._options import OPENING, dataset_argument, takes, wants_json
from penstock.cli._output import note
from penstock.cli._reports import emit_line, emit_written
from penstock.view.draw.words import counted, human_bytes


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@takes(f"{OPENING} flavor excludes global_batch state")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free port", help="Port to listen on."
)
@click.option("--no-open", is_flag=True, help="Don't open a browser.")
@takes(
    "tokenizer trust follow_links",
    trust="Import functions named by recipes, and decode pickles; both run code of others.",
)
def view(targets: tuple[str, ...], host: str, port: int, no_open: bool, **options: Any) -> None:
    """Browse datasets and runs in a web browser, until Ctrl-C.

    A TARGET is a dataset, a recipe, or a directory of them. Input options apply to a single dataset, run options to
    recipes. If the batch size is unknown, set it on the page to see steps, which count from 0.

    The first line printed is the URL of the start page. It contains an access token: anyone with the URL can see
    the data.
    """
    from penstock.view.pages.guard import is_loopback
    from penstock.view.pages.serve import view
    from penstock.view.pages.targets import Settings

    def ready(url: str) -> None:
        import webbrowser

        emit_line({"url": url}, url)
        if not is_loopback(host):
            note(f"listening on {host}: anyone with this URL can see the data")
        has_screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if not no_open and has_screen:
            webbrowser.open(url)

    view(targets, host=host, port=port, settings=Settings(**options), ready=ready)


@click.command()
@dataset_argument("target")
@takes("output", output="Path or URL of the HTML page.")
@click.option(
    "-n",
    "--limit",
    "examples",
    type=click.IntRange(0, 48),
    default=12,
    show_default=True,
    help="Number of samples to show.",
)
@click.option(
    "--depth",
    type=click.Choice(["none", "quick", "sample", "full"]),
    default="quick",
    show_default=True,
    help="How thoroughly to check a dataset, as in `penstock verify`.",
)
@click.option("--step", type=click.IntRange(0), default=0, show_default=True, help="Step to show, from 0.")
@takes(
    f"steps global_batch state world seed mode {OPENING} flavor excludes tokenizer overwrite trust dry_run "
    "follow_links",
    mode={"show_default": False, "help": "How to read a metadataset; see `penstock plan`."},
    overwrite="Replace an existing report.",
)
def report(target: str, output: str, **options: Any) -> None:
    """Write a self-contained HTML page about a dataset or a run.

    The page has no scripts and loads nothing from the network, and the same data gives the same bytes. Run options
    apply if TARGET is a recipe.
    """
    from penstock.view.report import report

    found = report(target, output, **options)
    text = f"{found.path}: {found.kind} with {counted(found.examples, 'example')}, {human_bytes(found.size_bytes)}"
    emit_written(found, [text], (target,), (found.path,), options)


@click.command()
@click.argument("path")
@click.argument("mountpoint")
@click.option("-s", "--sample-folders", is_flag=True, help="Show a directory per sample instead of one file per part.")
@click.option("-d", "--detach", is_flag=True, help="Run in the background.")
@takes("excludes follow_links")
def mount(path: str, mountpoint: str, sample_folders: bool, detach: bool, **options: Any) -> None:
    """Mount a WebDataset as a read-only file system.

    Each part of a sample is a file. Unmount with Ctrl-C or `fusermount -u MOUNTPOINT`.
    """
    from penstock.view.mount import mount

    def ready() -> None:
        if wants_json():
            emit_line({"path": path, "mountpoint": mountpoint}, "")
        else:
            end = f"unmount with `fusermount -u {mountpoint}`" + ("" if detach else ", or Ctrl-C")
            note(f"{path} at {mountpoint}; {end}")

    mount(path, mountpoint, by_sample=sample_folders, detach=detach, **options, ready=ready)
