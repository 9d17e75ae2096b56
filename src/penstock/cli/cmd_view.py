"""`penstock view TARGET…`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._opening import excludes_option, flavor_option, opening_options
from penstock.cli._output import emit_line, follow_links_option, json_option, note


@click.command()
@click.argument("targets", nargs=-1, required=True)
@opening_options("what is looked at")
@flavor_option
@excludes_option
@click.option("--global-batch", type=click.IntRange(1), help="Of runs: samples per step, over all ranks.")
@click.option("--state", help="Of a run: saved state (JSON), which records the batch size of each step.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens: by default this machine alone.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="By default one that is free.")
@click.option("--no-open", is_flag=True, help="Open no browser.")
@click.option("--tokenizer", help="tokenizer.json or its folder, or a name in the Hub's local cache: ids as text.")
@click.option("--trust", is_flag=True, help="Import what recipes name, and decode pickles: both run code of others.")
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
    """Look at datasets, recipes, or a folder of them, in a browser, until Ctrl-C.

    Steps of runs are counted from 0. --global-batch and --state go with recipes. Without either, a recipe without a
    batch size is shown without steps until the page is told one.

    --format, --layout, --eos-id, --flavor, --planes and --excludes go with one dataset.

    The first line is the address of the first page. There is a token in it: whoever has it may look.
    """
    from penstock.view.pages.guard import is_loopback
    from penstock.view.pages.serve import view
    from penstock.view.pages.targets import Settings

    def ready(url: str) -> None:
        emit_line({"url": url}, as_json=as_json, text=url)
        if not is_loopback(host):
            note(f"it listens on {host}: whoever has this address may look")
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
