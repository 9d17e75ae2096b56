"""`penstock prepare-media DIR`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli._energon import (
    closing,
    media_options,
    take_media,
)
from penstock.cli._executors import modest_executor_options
from penstock.cli._output import emit, follow_links_option, human_bytes, json_option, note, progress
from penstock.cli._sharing import end_unfinished, keeping, missing_text, restart_option, sharing_options

_SHOWN = 10


def _announce(num_files: int, size_bytes: int) -> None:
    files = "1 file" if num_files == 1 else f"{num_files:,} files"
    note(
        f"reading the whole of {files} ({human_bytes(size_bytes)}) to count packets, as headers state no reliable "
        "count; --headers-only skips this"
    )


@click.command()
@click.argument("path")
@media_options
@modest_executor_options
@restart_option
@sharing_options
@follow_links_option
@json_option
def command(path: str, as_json: bool, **options: Any) -> None:
    """Index the metadata of media files in a directory or in a prepared WebDataset.

    Media are found by extension unless another option selects them. Files that an earlier run read are not read again.
    If a header states no reliable duration or count, the whole file is read once to count its packets.
    """
    import msgspec

    from penstock.prepare.media.run import prepare_media

    by, patterns = take_media(options) or ("extension", None)
    with keeping(path), progress("prepare-media", total=None, unit="files") as advance:
        summary = prepare_media(
            path,
            by=by,
            patterns=patterns,
            workers=options["workers"],
            executor=options["executor"],
            exact=options["exact"],
            headers_only=options["headers_only"],
            follow_links=options["follow_links"],
            part=options["part"],
            finish=options["finish"],
            no_work=options["no_work"],
            restart=options["restart"],
            progress=lambda done, total: advance(done, total=total),
            before_counting=_announce,
        )
    if not as_json:
        from penstock.codec.upright import PIXELS

        for one in summary.problems[:_SHOWN]:
            note(f"warning: {one.name}: {one.what}")
        if len(summary.problems) > _SHOWN:
            note(f"… and {len(summary.problems) - _SHOWN:,} more; --json lists them all")
        for trait, count in summary.traits.items():
            note(f'{count:,} images have {trait}: decode="uint8" {PIXELS[trait]}')
    share = "" if summary.part is None else f"part {summary.part[0]} of {summary.part[1]}: "
    text = (
        f"{summary.path}: {share}metadata of {summary.num_rows:,} media; "
        f"{summary.num_files:,} files selected, {summary.num_read:,} read now"
    )
    text += "" if share else closing(f"Done. Stored metadata for {summary.num_rows} files.")
    text = missing_text(summary.path, summary.missing) if summary.missing else text
    emit(msgspec.to_builtins(summary), as_json=as_json, text=text)
    end_unfinished(summary.missing)
