"""Options of commands: one table, decorators that add options from it, and the options of all commands."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Container, Mapping
from typing import Any, Literal, TypeVar, cast

import click

from penstock._keywords import Opening, definitions
from penstock._limits import count_in
from penstock._secrets import logger
from penstock._settings import setting
from penstock.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

Progress = Literal["auto", "plain", "json", "none"]
PROGRESS: tuple[Progress, ...] = ("auto", "plain", "json", "none")

_KEY = "penstock.cli"
_INDEX_VARIABLES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")
_COUNT = {"type": click.IntRange(min=1)}
_INDEX = {"type": click.IntRange(min=0)}


# --- the table ---------------------------------------------------------------------------------------------------


def _opening() -> dict[str, dict[str, Any]]:
    """Return the options of `Opening` that commands have, as attributes of click's."""
    found: dict[str, dict[str, Any]] = {}
    for name, kind, option in definitions(Opening):
        if not option.help:
            continue
        found[name] = {"help": option.help, "show_default": option.shown or False}
        if kind is bool:
            found[name] |= {"is_flag": True}
        elif option.choices is not None:
            found[name] |= {"type": click.Choice(option.choices)}
        else:
            found[name] |= {"type": int if kind == int | None else None, "metavar": option.metavar}
        if option.shown is True:
            found[name]["default"] = option.default
    found["excludes"]["callback"] = _exclude_list
    return found


def _exclude_list(context: click.Context, param: click.Parameter, value: str | None) -> Any:
    """Return False for `none`: the data is read without its exclude list."""
    return False if value == "none" else value


def _flag(help: str, **more: Any) -> dict[str, Any]:
    return {"is_flag": True, "help": help, **more}


def _part(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """Return `(i, n)` of `"i/n"` or `"auto/n"`."""
    if value is None:
        return None
    index, _, count = value.partition("/")
    shown = repr(value)
    if index == "auto":
        name = next((name for name in _INDEX_VARIABLES if os.environ.get(name)), None)
        if name is None:
            raise ConfigError(
                "--part auto/N needs an array index",
                expected=f"{' or '.join(_INDEX_VARIABLES)} in the environment",
                hint="Name the part instead: --part I/N",
            )
        index = os.environ[name]
        shown = f"{value!r} with {name}={index}"
    number, parts = count_in(index), count_in(count)
    if number is None or not parts:
        raise click.BadParameter(f"{shown} is not I/N or auto/N with N of at least 1.")
    if number >= parts:
        raise click.BadParameter(f"{shown}: I is out of range, expected 0 to {parts - 1}.")
    return number, parts


PART_HELP = "{0}. auto/N takes I from $SLURM_ARRAY_TASK_ID or $JOB_COMPLETION_INDEX."

# fmt: off
TABLE: dict[str, dict[str, Any]] = _opening() | {
    "format": {"metavar": "NAME", "show_default": "detected", "help": "Format of {whose}."},
    # Output
    # Eager, so that a missing output is reported before files that don't exist.
    "output": {"names": ("-o", "--output"), "metavar": "PATH", "required": True, "is_eager": True},
    "to": {"metavar": "FORMAT", "show_default": "from the output's suffix, otherwise the source's format",
        "help": "Format of the output."},
    "overwrite": _flag("Replace an existing output."),
    "dry_run": _flag("Check everything and print the plan without writing."),
    "keep_map": _flag("Write a row map next to the output: the source and row of each sample, 8 bytes each."),
    "keep_excluded": _flag("Copy excluded samples too; they stay excluded in the output."),
    "drop_planes": _flag("Don't copy planes such as loss masks.", default=None),
    "token_bytes": {"type": click.Choice(["1", "2", "4"]),
        "help": "Width of the output's token IDs in bytes; IDs are widened, never narrowed."},
    "file_tokens": _COUNT,
    "maxcount": _COUNT | {"help": "Maximum number of samples per new tar."},
    "maxsize": _COUNT | {"help": "Start a new tar at this size in bytes."},
    "pattern": {"help": "Names of new tars, such as shard_%06d.tar."},
    "prefix_keys": _flag(
        "Prefix sample keys with the name of their shard, for tar shards that share keys.", default=None),
    "on_error": {"type": click.Choice(["raise", "skip"]), "default": "raise", "show_default": True},
    # Workers and distributed jobs
    "executor": {"metavar": "NAME",
        "help": "Where tasks run: inline, processes, ray, ray:HOST:PORT, or an executor plug-in by name."},
    "workers": _COUNT | {
        "help": "Number of parallel tasks. Without --workers and --executor, one process does all the work."},
    "part": {"metavar": "I/N", "callback": _part,
        "help": PART_HELP.format("Process part I (from 0) of N, without committing")},
    "finish": _flag("Run the missing parts of a distributed job, then commit."),
    "no_work": _flag("With --finish: don't run missing parts; list them and exit with 14."),
    "restart": _flag("Discard an unfinished run and start over."),
    # Samples
    "where": {"metavar": "EXPR"},
    "indices": {"metavar": "FILE"},
    "key_field": {"metavar": "NAME", "show_default": "__key__, key, id, doc_id or url",
        "help": "Field that holds the key."},
    "limit": {"names": ("-n", "--limit")},
    "start": _INDEX | {"help": "Start at this index, from 0."},
    "index": _INDEX | {"help": "Show the sample at this index, from 0."},
    "key": {"metavar": "KEY", "help": "Show the sample with this key."},
    "tokenizer": {"metavar": "NAME",
        "help": "Show token IDs as text: a tokenizer.json, its directory, or a name in the Hub's local cache."},
    "show_all": _flag("Also show fields that start with __.", names=("--all", "show_all")),
    # Runs
    "mode": {"type": click.Choice(["train", "val"]),
        "show_default": "val for splits named val… or test…, otherwise train",
        "help": "How to read a metadataset: shuffled and endless (train), or one pass in order (val)."},
    "global_batch": _COUNT | {"help": "Samples per step, over all ranks."},
    "seed": {"type": int, "show_default": "0", "help": "Seed of the order, if the recipe doesn't set it."},
    "world": _COUNT | {"help": "Number of data-parallel ranks."},
    "lanes": _COUNT | {"help": "Number of lanes, if the recipe doesn't set it."},
    "steps": _COUNT | {"show_default": "until every source was read once", "help": "Number of steps of the run."},
    "state": {"metavar": "FILE",
        "help": "Saved state (JSON) of the run, which records the batch size of each step."},
    # Energon
    "dataset_config": {"metavar": "NAME", "default": "dataset.yaml", "show_default": True,
        "help": "File that defines the sample type."},
    "split_config": {"metavar": "NAME", "show_default": "split.yaml", "help": "File that assigns shards to splits."},
    "by_extension": _flag("Index media found by their extension.", names=("--media-by-extension", "by_extension")),
    "by_glob": {"names": ("--media-by-glob", "by_glob"), "metavar": "P[,P]",
        "help": "Index media with names that match a pattern, such as '*.jpg,*.png'."},
    "by_header": _flag("Index media found by their first bytes.", names=("--media-by-header", "by_header")),
    "exact": _flag("Decode images, video and audio and count, instead of trusting headers."),
    "headers_only": _flag("Don't read files to count what their headers don't state; leave those durations unknown."),
}
# fmt: on
"""Parameter → attributes of its option, the same in all commands unless `takes` changes them."""

OPENING = " ".join(("format", *(name for name, _, option in definitions(Opening) if option.common)))
TARS = "maxcount maxsize pattern prefix_keys"
EXECUTOR = "executor workers"
SHARED = f"{EXECUTOR} restart part finish no_work"
WHOLE = f"dry_run to {OPENING} excludes drop_planes keep_map keep_excluded overwrite follow_links"
SAMPLES = "start index key tokenizer show_all"
RUN = "split mode global_batch seed world lanes trust follow_links"
MEDIA = "by_extension by_glob by_header exact headers_only"

_PROCESSES: dict[str, Any] = {"executor": {"default": "processes", "show_default": True}}
ALL_CORES = _PROCESSES | {
    "workers": {"help": "Number of parallel tasks.", "show_default": "one per core, or per CPU of the cluster"}
}
BY_SIZE = _PROCESSES | {
    "workers": {"help": "Number of parallel tasks.", "show_default": "depends on the size of the data"}
}


def takes(
    names: str, whose: str = "the dataset", /, **changes: str | Mapping[str, Any]
) -> Callable[[Command], Command]:
    """Add options of the table, in this order.

    Args:
        names: parameters, separated by spaces.
        whose: the dataset that the options are about, as help names it.
        changes: parameter → its help here, or other attributes.
    """

    def add(command: Command) -> Command:
        for name in reversed(names.split()):
            change = changes.get(name, {})
            attributes: dict[str, Any] = TABLE[name] | ({"help": change} if isinstance(change, str) else dict(change))
            flags = attributes.pop("names", (f"--{name.replace('_', '-')}",))
            attributes["help"] = attributes["help"].replace("{whose}", whose)
            command = click.option(*flags, **attributes)(command)
        return command

    return add


run_options = takes(
    RUN,
    split={"default": "train", "show_default": True, "help": "Split of a metadataset."},
    trust="Import functions that the recipe names, which runs their code.",
)
"""Add the options of commands that open a recipe as a run."""


def dataset_argument(name: str) -> Callable[[Command], Command]:
    """Add the argument of a dataset; the command gets several files, directories and patterns as one path."""

    def one_path(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> str | None:
        from penstock.store.patterns import pattern_of

        return pattern_of(given) if given else None  # completion parses incomplete lines

    return click.argument(name, nargs=-1, required=True, metavar=f"{name.upper()}...", callback=one_path)


# --- options of all commands -------------------------------------------------------------------------------------


def common_options(*, hidden: bool) -> list[click.Option]:
    """Return the options of all commands. Only the help of `penstock` lists those that are `hidden` here."""
    kept: dict[str, Any] = {"expose_value": False, "callback": _keep}
    text = "Print one JSON document to standard output" + ("." if hidden else ", for errors too.")
    return [
        click.Option(["-q", "--quiet"], is_flag=True, help="Print only results and errors.", hidden=hidden, **kept),
        click.Option(
            ["-v", "--verbose"], is_flag=True, help="Also print the library's log messages.", hidden=hidden, **kept
        ),
        progress_option_of(hidden=hidden),
        click.Option(["--json"], is_flag=True, help=text, **kept),
        click.Option(["--no-color"], is_flag=True, help="Don't use colors.", hidden=hidden, **kept),
        click.Option(["--debug"], is_flag=True, help="Show tracebacks.", hidden=hidden, **kept),
    ]


def progress_option_of(**more: Any) -> click.Option:
    """Return `--progress MODE`."""
    text = (
        "How to report progress. auto: a bar on a terminal, otherwise a line every 30 seconds; plain: always lines; "
        "json: one JSON object per line, for messages too; none: nothing."
    )
    shown: dict[str, Any] = {"type": click.Choice(PROGRESS), "show_default": "auto", "help": text}
    return click.Option(["--progress"], expose_value=False, callback=_keep, **shown, **more)


def copied(command: click.Command) -> click.Command:
    """Return a copy of a command to which options can be added."""
    command = copy.copy(command)
    command.params = list(command.params)
    return command


def common() -> dict[str, Any]:
    """Return the common options that were given, shared by a command and its subcommands."""
    context = click.get_current_context(silent=True)
    return {} if context is None else context.meta.setdefault(_KEY, {})


def wants_json() -> bool:
    """Return whether `--json` was given, before or after the name of the command."""
    return bool(common().get("json"))


def progress_mode(known: Mapping[str, Any] | None = None) -> Progress:
    """Return how to show progress, by the common options in `known`."""
    known = common() if known is None else known
    if known.get("quiet") and "progress" not in known:
        return "none"
    return cast(Progress, known.get("progress") or setting("PENSTOCK_PROGRESS") or "auto")


def is_quiet() -> bool:
    """Return whether notes are left out."""
    return bool(common().get("quiet"))


def has_color() -> bool:
    """Return whether colors may be shown."""
    return not (common().get("no_color") or setting("NO_COLOR"))


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    if not value:
        return
    context.meta.setdefault(_KEY, {})[option.name] = value
    if option.name == "verbose":
        import logging

        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        logger().setLevel(logging.DEBUG)
    if option.name == "no_color":
        context.color = False


# --- options that contradict others ------------------------------------------------------------------------------


class _Refused(click.UsageError):
    exit_code = 1


def as_energon() -> bool:
    """Return whether the command runs as `penstock energon …`."""
    return bool((click.get_current_context().obj or {}).get("as_energon"))


def refusal(what: str) -> click.UsageError:
    """Return the error for options that contradict each other: exit status 1 in Energon's commands, else 2."""
    return _Refused(what) if as_energon() else click.UsageError(what)


def is_given(name: str) -> bool:
    """Return whether the current command's parameter was given on the command line."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def refuse_given(names: Container[str], why: str) -> None:
    """Raise a usage error that names the given options of `names`, which would have no effect, and why."""
    given = [
        one.opts[0] for one in click.get_current_context().command.params if one.name in names and is_given(one.name)
    ]
    if given:
        raise refusal(f"{why}: leave out {', '.join(given)}.")
