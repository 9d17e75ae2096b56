"""Suggestions for wrong usage and for paths that don't exist."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

import click

from penstock._naming import nearest

_INSTEAD: dict[tuple[str, str], str] = {
    ("index", "-o"): "Use --index-path to choose the index file.",
    ("repair", "--fix"): "Use --write to make the repairs.",
    ("verify", "--fix"): "Use `penstock repair`.",
    ("filter", "--regex"): "Use --match PATTERN with --field NAME.",
    ("mount", "-o"): "The mount point is the second argument: penstock mount PATH MOUNTPOINT.",
    ("diff", "-o"): "Both datasets are arguments: penstock diff A B.",
    ("split", "--chunk-id"): "Use --parts N --only I.",
    ("split", "--num-chunks"): "Use --parts N --only I.",
    ("verify", "--split-parts"): "Use --split NAME.",
    ("head", "--split-parts"): "Use --split NAME.",
    **{("verify", one): "Use `penstock energon lint`." for one in ("--dataset-config", "--split-config", "--parallel")},
    ("head", "--dataset-config"): "Use `penstock energon preview`.",
    **{
        ("prepare", one): "Use `penstock energon prepare`."
        for one in ("--fix-duplicates", "--no-progress", "--tmp-path")
    },
    **{("prepare-media", one): "Use `penstock energon prepare-media`." for one in ("--no-progress", "--tmp-path")},
    **{
        (verb, f"--media-metadata-by-{way}"): f"Use --media-by-{way}, or `penstock energon {verb}`."
        for verb in ("prepare", "prepare-media")
        for way in ("extension", "glob", "header")
    },
    ("prepare", "--force-overwrite"): "Use --overwrite, or `penstock energon prepare`.",
    **{("mount", one): "Use `penstock energon mount`." for one in ("-w", "--allow-slow")},
}
"""Command and an option that it lacks → what to use instead."""

_ONE: dict[str, str] = {
    "repair": "Repair one dataset at a time.",
    "purge": "Give one dataset: a directory, or a quoted pattern such as '{a,b}.jsonl'.",
    "stage": "Give one dataset: a directory, or a quoted pattern such as '{a,b}.jsonl'.",
    "prepare": "Prepare one directory of tars or one JSONL file at a time.",
    "prepare-media": "Prepare one dataset at a time.",
    "mount": "Mount one directory of tars at a time: penstock mount PATH MOUNTPOINT.",
    "lineage": "Give one file at a time.",
    "diff": "A and B are one dataset each: a directory, or a quoted pattern such as '{a,b}.jsonl'.",
    "plan": "Give one recipe. A recipe can blend or join many datasets.",
    "explain": "Give one recipe. A recipe can blend or join many datasets.",
    "status": "Give one output at a time.",
}
"""Command that takes one dataset → what to do with several; a list of files needs no quotes where it is taken."""

_MISSING: dict[str, str] = {
    "output": "Name the output with -o OUT.",
    "tokenizer": "Give a tokenizer.json, its directory, or a name in the Hub's local cache.",
    "host": "Hosts count from 0.",
}
"""Parameter that is missing → how to give it."""

_QUOTES = "'\""
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_AMOUNT = re.compile(r"'(\d+)\s*([kKmMgGtT])[bB]?' is not a whole number\.")
_RANGE = re.compile(r"(\S+) is not in the range (?:(-?\d+)<=)?x(?:>=(-?\d+)|<=(-?\d+))\.")
_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s,;:.()]*)"""
_ARGUMENT = rf"[a-z_]+={_VALUE}"
_AND = r"(?:,? and |,? or |, )"
_ARGUMENTS_AFTER_OPTION = re.compile(rf"(--[^()]*) \({_ARGUMENT}(?:{_AND}{_ARGUMENT})*\)")
_OPTIONS_AFTER_ARGUMENT = re.compile(rf"{_ARGUMENT}(?:{_AND}{_ARGUMENT})* \((--[^()]*)\)")
_ALTERNATIVES = re.compile(rf"(?<![\w.(={{-]){_ARGUMENT}(?:{_AND}{_ARGUMENT})*")
_CLICKS_GUESS = re.compile(r" Did you mean [^?]*\?$")


def usage_hint(error: click.UsageError) -> str:
    """Return a sentence to append to click's message, or an empty string."""
    command = error.ctx.command if error.ctx else None
    name = (error.ctx.info_name if error.ctx else None) or ""
    if isinstance(error, click.NoSuchOption) and command is not None:
        known = [option for one in command.params for option in one.opts if option.startswith("--")]
        close = nearest(error.option_name, known)
        vars(error)["possibilities"] = None  # click's own are too far off
        if (name, error.option_name) in _INSTEAD:
            return " " + _INSTEAD[name, error.option_name]
        return f" Did you mean {close!r}?" if close else ""
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f" {_MISSING[error.param.name]}" if error.param.name in _MISSING else ""
    if isinstance(error, click.BadParameter) and error.param is not None and error.param.name == "pictures":
        return " Put paths before --pictures, which takes a value."
    if error.message.startswith("Got unexpected extra argument"):
        return f" {_ONE[name]}" if name in _ONE else ""
    if re.match(r"No such command '(.*)'", error.message) and isinstance(command, click.Group):
        typed = error.message.split("'")[1]
        near = nearest(typed, command.list_commands(error.ctx)) if error.ctx else None
        deeper = next(_deeper(command, error.ctx, typed), None) if error.ctx else None
        return f" Did you mean {near or deeper!r}?" if near or deeper else ""
    return ""


def _deeper(group: click.Group, context: click.Context, typed: str) -> Iterator[str]:
    """Commands of that name in groups below."""
    for name in group.list_commands(context):
        inner = group.get_command(context, name) if not context.parent else group.commands.get(name)
        if isinstance(inner, click.Group) and typed in inner.list_commands(context):
            yield f"{name} {typed}"


def with_options(hint: str, command: click.Command) -> str:
    """Return the hint of an error with this command's options in place of arguments of Python."""
    options = {one.name: max(one.opts, key=len) for one in command.params if isinstance(one, click.Option)}

    def in_words(match: re.Match[str]) -> str:
        """Name the options that this command has for the arguments; as in Python if it has none of them."""
        arguments = [one.partition("=") for one in re.findall(_ARGUMENT, match[0])]
        named = [
            f"{options[name]} {value.strip(_QUOTES)}".rstrip() if value != "True" else options[name]
            for name, _, value in arguments
            if name in options and value not in ("False", "None")
        ]
        rest = f"{', '.join(named[:-1])} or {named[-1]}" if named[1:] else "".join(named)
        return rest or match[0]

    hint = _ARGUMENTS_AFTER_OPTION.sub(r"\1", hint)
    return _ALTERNATIVES.sub(in_words, _OPTIONS_AFTER_ARGUMENT.sub(r"\1", hint))


def plain_numbers(text: str) -> str:
    """Reword click's messages about numbers."""
    text = _AMOUNT.sub(lambda one: f"{one[0]} Write it out: {int(one[1]) * _UNITS[one[2].lower()]}.", text)
    return _RANGE.sub(_range_in_words, text)


def _range_in_words(found: re.Match[str]) -> str:
    least, most = found[2] or found[3], found[4]
    expected = f"{least} to {most}" if least and most else f"{least} or more" if least else f"at most {most}"
    return f"{found[1]} is out of range, expected {expected}."


def path_hint(path: str) -> str:
    """Return what to do about a path that doesn't exist."""
    if not path:
        return "The path is empty. Was it an unset variable?"
    if path.startswith("~"):
        return "Shells don't expand ~ in quotes. Remove the quotes, or write the full path"
    if "$" in path:
        return "The shell didn't expand the variable. Use double quotes, or none"
    if re.match(r"[A-Za-z]:[\\/]", path):
        return "This is a Windows path. Under WSL it is /mnt/c/…"
    if re.match(r"(s3|gs|az|https?)/{1,2}", path):
        return "A URL starts with a scheme and ://"
    if any(one in path for one in "*?[") and "://" not in path:
        fits = next(glob.iglob(path), None) is not None
        return "Files match this pattern, but a single path is needed" if fits else "No file matches this pattern"
    return _near_path(path) or "Check the path"


def _near_path(path: str) -> str:
    folder, name = os.path.split(path.rstrip("/"))
    try:
        with os.scandir(folder or ".") as entries:
            close = nearest(name, [one.name for one, _ in zip(entries, range(1000), strict=False)])
    except OSError:
        above = folder
        while above and not os.path.isdir(above):
            above = os.path.dirname(above)
        return f"{above} exists, but not the rest of the path" if above else ""
    return f"Did you mean {os.path.join(folder, close)!r}?" if close and close != name else ""
