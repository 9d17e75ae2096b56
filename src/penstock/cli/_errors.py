"""Errors: messages about wrong usage, suggestions, and meanings and remedies of error codes."""

from __future__ import annotations

import glob
import os
import re
import textwrap
from collections.abc import Iterator

import click

from penstock import errors
from penstock._naming import nearest
from penstock._printable import shortened_part
from penstock._secrets import redact

SYSTEM, OUR_FAULT, INTERRUPTED = 18, 70, 130


REMEDIES = {
    "penstock": "`except PenstockError` catches all errors below.",
    "format": "`penstock verify --depth full` lists every problem with its location and what to do.",
    "truncated": "Copy or download the file again. If a run was killed, re-run the same command to finish it.",
    "corrupt": "Copy the file again, or run `penstock repair`, which lists its changes before it makes any.",
    "unsupported": "The hint names a way to read the data: often `penstock convert`, or another command.",
    "too-large": "Data that claims more than its file can hold is rejected. `docs/guide/limits.md` lists the limits.",
    "cook": "Fix the function or the data. The message names the sample.",
    "not-found": "Check the path, key or name. The hint suggests similar names.",
    "excluded": "`penstock exclude TARGET --show` lists excluded samples and the reasons; `--undo` restores them.",
    "config": "The message names the option and the values that it accepts.",
    "resume-mismatch": "The message names the difference. `accept=[…]` accepts it and records it in the state.",
    "unsafe-data": "If you trust the data, pass the option in the hint: `trust=` (`--trust`) or `--follow-links`.",
    "missing-extra": "Run the `pip install` command in the message. `penstock doctor` lists all extras.",
    "prepare": "Re-run the same command to resume. `penstock status OUT` lists missing work.",
    "unreachable": "Check the network and the endpoint (`penstock doctor` shows it), then re-run the command.",
    "denied": "Check the credentials. The message names the service that rejected them, never the credentials.",
}
"""Code → what to do."""


OTHERS = {
    "usage": (2, "wrong usage", "`penstock VERB --help` shows all options and an example."),
    "system": (
        SYSTEM,
        "the operating system reported an error: permissions, a full disk, memory, or I/O",
        "The message names the file, unless memory ran out. Check permissions, free space and limits "
        "(`penstock doctor`), then re-run the command.",
    ),
    "fault": (
        OUR_FAULT,
        "unexpected error: a bug in Penstock",
        "Please report it with the output of `penstock --debug …` for the same command.",
    ),
    "interrupted": (INTERRUPTED, "interrupted", "The message explains how to resume and which work is kept."),
}
"""Code of an error that isn't a `PenstockError` → exit status, meaning, what to do."""


_GOOD = {
    0: "success",
    1: "verify or energon lint found errors, repair left errors, find found nothing, or diff found differences",
}


def kinds() -> Iterator[type[errors.PenstockError]]:
    """Yield every error class, each before its subclasses."""
    left = [errors.PenstockError]
    while left:
        kind = left.pop(0)
        yield kind
        left[:0] = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]


def exit_codes() -> Iterator[tuple[int, str]]:
    """Yield every exit status with its meaning."""
    yield from _GOOD.items()
    yield OTHERS["usage"][:2]
    for kind in kinds():
        yield kind.exit_status, f"{kind.__name__}: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}"
    yield from (one[:2] for code, one in OTHERS.items() if code != "usage")


def codes() -> Iterator[tuple[str, str, int, str]]:
    """Yield the code, class name (empty if none), exit status, and meaning with remedy of each error."""
    for kind in kinds():
        said = " ".join((kind.__doc__ or "").strip().partition("\n\n")[0].split())
        yield kind.code, kind.__name__, kind.exit_status, f"{said} {REMEDIES[kind.code]}"
    for code, (status, what, remedy) in OTHERS.items():
        yield code, "", status, f"{what[0].upper()}{what[1:]}. {remedy}"


def errors_option() -> click.Option:
    """Return the option `--errors`."""

    def show(context: click.Context, option: click.Parameter, given: bool) -> None:
        if given:
            click.echo(page())
            context.exit()

    text = "Explain error codes such as [corrupt], and exit statuses."
    return click.Option(["--errors"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=text)


def page() -> str:
    """Return the text of `penstock --errors`: each code with its exit status, meaning and remedy."""
    told = [f"[{code}] exit {status}: {text}" for code, _, status, text in codes()]
    told += [f"exit {status}: {what}" for status, what in _GOOD.items()]
    told.append("Codes of findings, such as pbin.truncated: `penstock verify --explain CODE`")
    return "\n".join(textwrap.fill(one, 100, subsequent_indent="    ") for one in told)


# --- wrong usage -----------------------------------------------------------------------------------------------------


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
"""Command that takes one dataset → what to do with several."""


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


_NO_NUMBER = re.compile(r"is not a valid (integer|float)( range)?\.")


def in_plain_words(error: click.ClickException) -> str:
    """Return click's message about wrong usage, with a suggestion."""
    # Cut first: the patterns below look at each place of a text, as far as it goes.
    told = error.format_message() if isinstance(error, click.BadParameter) else error.message
    text = shortened_part(redact(told))
    text = _NO_NUMBER.sub(lambda found: f"is not a {'whole ' if found[1] == 'integer' else ''}number.", text)
    text = plain_numbers(text)
    if not isinstance(error, click.UsageError):
        return text
    hint = usage_hint(error)
    return f"{text.rstrip()}{hint}" if not hint or text.rstrip().endswith((".", "?")) else f"{text.rstrip()}.{hint}"
