"""`penstock`: finds the command, runs it, and turns errors into messages and exit codes."""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import os
import select
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from penstock import __version__, errors
from penstock._printable import printable, printable_json, printable_lines, shortened
from penstock._secrets import redact
from penstock._settings import setting
from penstock.cli._errors import (
    INTERRUPTED,
    OUR_FAULT,
    SYSTEM,
    errors_option,
    in_plain_words,
    path_hint,
    with_options,
)
from penstock.cli._help import (
    ALIASES,
    COMMANDS,
    GROUPS,
    MODULES,
    RENAMED,
    VARIABLE,
    add_common,
    group_options,
    kept_by,
    with_example,
)
from penstock.cli._options import common_options, copied

_FAULT_CHARACTERS = 120
"""Longest text of an unexpected error; `--debug` prints all of it."""
_MEMORY = "Use fewer workers, or raise the memory limit (ulimit -v); penstock doctor shows it"
_THREADS = "Use fewer workers, or raise the limit of processes (ulimit -u, or the container's)"


class LazyCommands(click.Group):
    """Lists commands without importing them: `--help` must not pay for numpy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # A copy: groups of others have some of these commands too, with other examples.
        command = copied(
            getattr(importlib.import_module(f"penstock.cli.{MODULES[cmd_name]}"), cmd_name.replace("-", "_"))
        )
        if VARIABLE in os.environ:
            from penstock.cli.start import completing

            command = completing(command)
        command = _with_aliases(command, ALIASES[""] | ALIASES.get(cmd_name, {}))
        return _reporting(add_common(with_example(command, cmd_name), cmd_name), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in RENAMED and not ctx.resilient_parsing:  # which completion sets
            raise click.UsageError(f"'{args[0]}' is now `penstock {RENAMED[args[0]]}`.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for group in GROUPS.values() for name in group)
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), what) for name, what in commands.items()])


def _with_aliases(command: click.Command, aliases: Mapping[str, str]) -> click.Command:
    """Return the command, which also takes options by names of earlier versions; `command` is a copy."""
    make = command.make_parser

    def make_parser(context: click.Context) -> Any:
        parser = make(context)
        for old, new in aliases.items():
            for option in command.params:
                if new in option.opts:
                    alias = copy.copy(option)
                    alias.opts = [old]
                    alias.add_to_parser(parser, context)
        return parser

    vars(command)["make_parser"] = make_parser
    return command


class _Broken(Exception):
    """A broken pipe, hidden from click, which would exit with 1 without a message."""


def _reporting(command: click.Command, name: str) -> click.Command:
    """Let a command report every 30 seconds that it is running, and at an interrupt what is kept."""
    invoke = command.invoke

    def watched(context: click.Context) -> Any:
        from penstock.cli._output import SERVING, logs_as_asked, reporting

        with contextlib.nullcontext() if name in SERVING else reporting(name), logs_as_asked():
            try:
                return invoke(context)
            except KeyboardInterrupt as interrupt:
                raise KeyboardInterrupt(str(interrupt) or kept_by(name)) from None
            except BrokenPipeError as error:
                raise _Broken from error

    vars(command)["invoke"] = watched  # of this copy alone
    return command


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def cli() -> None:
    """Prepare, store, check, convert and feed LLM and multimodal training data."""


cli.params += [*common_options(hidden=False), errors_option()]
group_options(cli, "")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    _open_what_is_closed()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    flags = list(itertools.takewhile(lambda one: one != "--", arguments))
    debug = "--debug" in flags
    try:
        debug = debug or setting("PENSTOCK_DEBUG") is not None
        status = cli.main(arguments, prog_name="penstock", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = 2
    except SystemExit:
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        if isinstance(error, _Broken) and error.__cause__ is not None:
            error = error.__cause__
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(0)
        if debug:
            raise error
        failure, status = _understand(error, arguments)
        ends_itself = status == INTERRUPTED and not isinstance(error, click.Abort)  # Abort: answers that end, too
        if not ends_itself and status != OUR_FAULT and not isinstance(error, click.UsageError):
            status = 1 if _is_energon(arguments) else status
        _tell(error, failure, status, flags)
    sys.exit(status if isinstance(status, int) else 0)


def _open_what_is_closed() -> None:
    """Replace closed standard streams, so that no data file gets their numbers and the output of libraries."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            os.dup2(nowhere, number)  # for what we start, too
            if nowhere != number:
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _tell(error: BaseException, failure: dict[str, str | None], status: Any, flags: list[str]) -> None:
    """Print the message of an error to standard error, and with `--json` to standard output too."""
    if _wants_objects(flags):
        from penstock.cli._output import tell_object

        tell_object({"level": "error", **failure})
    elif isinstance(error, click.ClickException):
        click.UsageError(failure["message"] or "", getattr(error, "ctx", None)).show()
    else:
        code = "" if status == INTERRUPTED else f" [{failure['code']}]"  # `penstock --errors` explains it
        click.echo(f"penstock: {failure['message']}{code}", err=True)
    if "--json" in flags:
        import json

        with contextlib.suppress(OSError):
            click.echo(printable_json(json.dumps({"error": failure}, indent=1, ensure_ascii=False)))


def _wants_objects(flags: list[str]) -> bool:
    """Return whether `--progress json` was given, which a mistyped command hasn't parsed."""
    said = [value for one, value in itertools.pairwise(flags) if one == "--progress"]
    said += [one.partition("=")[2] for one in flags if one.startswith("--progress=")]
    with contextlib.suppress(errors.PenstockError, OSError):
        return (said[-1] if said else setting("PENSTOCK_PROGRESS")) == "json"
    return False


def _is_energon(arguments: Sequence[str]) -> bool:
    """Return whether the command is one of Energon's, which exit with 1 for all errors."""
    return next((one for one in arguments if not one.startswith("-")), None) == "energon"


def _understand(error: BaseException, arguments: Sequence[str]) -> tuple[dict[str, str | None], int]:
    """Return the JSON document of an error and the exit status."""
    match error:
        case click.ClickException():
            context = error.ctx if isinstance(error, click.UsageError) else None
            hint = None if context is None else f"{context.command_path} --help"
            return _failure("usage", in_plain_words(error), hint=hint), error.exit_code
        case click.Abort() | KeyboardInterrupt():  # click turns the second into the first
            said = str(error.__cause__ or "") if isinstance(error, click.Abort) else str(error)
            return _failure("interrupted", said or "stopped"), INTERRUPTED
        case errors.PenstockError():
            if error.path is not None:
                given = _as_given(error.path, arguments)
                error.hint = error.hint and error.hint.replace(error.path, given)
                error.path = given
            if isinstance(error, errors.ConfigError) and isinstance(error.found, str):
                error.found = _as_given(error.found, arguments)
            if error.hint == "Check the path":
                error.hint = path_hint(error.path or "")
            command = _command_of(arguments)
            error.hint = error.hint and with_options(error.hint, command)
            place = None if error.offset_bytes is None else f"byte {error.offset_bytes}"
            parts = {"path": error.path, "place": place, "found": error.found}
            return _failure(
                error.code, str(error), **parts, expected=error.expected, hint=error.hint
            ), error.exit_status
        case OSError():
            if error.filename is None and _is_of_output(error):
                error.filename = "standard output"
            path = redact(printable(_as_given(os.fsdecode(error.filename), arguments))) if error.filename else None
            where = f"{shortened(path)}: " if path else ""
            folder, name = os.path.split(path or "")
            if isinstance(error, PermissionError) and name.startswith(".") and not os.access(folder or ".", os.W_OK):
                where += f"can't write in {shortened(os.path.join(folder or '.', ''))}: "
            return _failure("system", f"{where}{error.strerror or error}", path=path), SYSTEM
        case MemoryError():
            what = f"not enough memory: {error}" if str(error) else "not enough memory"
            return _failure("system", f"{what}. {_MEMORY}", hint=_MEMORY), SYSTEM
        case RuntimeError() if str(error) == "can't start new thread":  # Python names no class of its own for it
            return _failure("system", f"{error}. {_THREADS}", hint=_THREADS), SYSTEM
        case _:
            return _failure("fault", _our_fault(error)), OUR_FAULT


def _command_of(arguments: Sequence[str]) -> click.Command:
    command: click.Command = cli
    context = click.Context(command)
    for one in arguments:
        inner = command.get_command(context, one) if isinstance(command, click.Group) else None
        command = inner or command
    return command


def _as_given(path: str, arguments: Sequence[str]) -> str:
    with contextlib.suppress(OSError, ImportError):  # the working folder may be gone
        from penstock.store.place import as_given

        return as_given(path, arguments)
    return path


def _failure(code: str, message: str, **parts: object) -> dict[str, str | None]:
    names = ("path", "place", "found", "expected", "hint")
    known = {name: None if parts.get(name) is None else redact(str(parts[name])) for name in names}
    return {"code": code, "message": shortened(redact(printable_lines(message))), **known}


def _is_output_closed() -> bool:
    """Return whether the reader closed standard output; other broken pipes are errors."""
    asked = select.poll()
    asked.register(1, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _is_of_output(error: OSError) -> bool:
    """Return whether an error was raised while printing."""
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1] == click.echo.__code__.co_filename


def _our_fault(error: BaseException) -> str:
    """Describe an unexpected error in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "Please report this bug with the output of `penstock --debug …` for the same command"
    return f"unexpected error in Penstock {__version__}: {shortened(redact(text), _FAULT_CHARACTERS)}. {hint}"
