"""What a shell completes: files, names of formats, splits."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import CompletionItem

_SPLITS = ("train", "validation", "val", "test")


class CompletedText(click.types.StringParamType):
    """Text as before, with something to complete it by."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What it may be."""
        if param.name in ("format", "format_name", "to"):
            from penstock.formats import format_names

            known = format_names()
        elif param.name in ("split", "source_split", "split_parts"):
            known = sorted({*_SPLITS, *_folders(ctx.params)})
        else:
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def completing(command: click.Command) -> click.Command:
    """The command, whose texts a shell completes."""
    for param in command.params:
        if type(param.type) is click.types.StringParamType:
            param.type = CompletedText()
    return command


def _folders(given: dict[str, Any]) -> list[str]:
    """The folders in the dataset that was named already."""
    named = (*(given.get(name) for name in ("path", "source")), *(given.get("paths") or ()))
    path = next((one for one in named if isinstance(one, str)), None)
    if path is None or not os.path.isdir(path):
        return []
    return [one.name for one in os.scandir(path) if one.is_dir() and not one.name.startswith(".")]
