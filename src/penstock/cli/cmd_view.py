"""`penstock view TARGET…`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._opening import excludes_option, flavor_option, opening_options
from penstock.cli._output import emit_line, follow_links_option, json_option, note
from penstock.cli._samples import tokenizer_option


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@opening_options("the dataset")
@flavor_option
@excludes_option
@click.option("--global-batch", type=click.IntRange(1), help="Samples per step, over all ranks.")
@click.option(
    "--state", metavar="FILE", help="Saved state (JSON) of the run, which records the batch size of each step."
)
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, show_default="any free port", help="Port to listen on."
)
@click.option("--no-open", is_flag=True, help="Don't open a browser.")
@tokenizer_option
@click.option(
    "--trust", is_flag=True, help="Import functions named by recipes, and decode pickles; both run code of others."
)
@follow_links_option
@json_option
def command(
    targets: tuple[str, ...],
    split: str | None,
    format: str | None,
    layout: str | None,
    eos_id: int | None,
    flavor: str | None,
    excludes: Any,
    planes: str,
    global_batch: int | None,
    state: str | None,
    host: str,
    port: int,
    no_open: bool,
    tokenizer: str | None,
    trust: bool,
    follow_links: bool,
    as_json: bool,
) -> None:
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
        emit_line({"url": url}, as_json=as_json, text=url)
        if not is_loopback(host):
            note(f"listening on {host}: anyone with this URL can see the data")
        if not no_open:
            _open(url)

    settings = Settings(
        split, tokenizer, trust, follow_links, format, layout, eos_id, excludes, flavor, planes, global_batch, state
    )
    view(targets, host=host, port=port, settings=settings, ready=ready)


def _open(url: str) -> None:
    """Open a browser, where there is a screen for it."""
    import os
    import sys
    import webbrowser

    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
