"""`penstock`: finds the command, runs it, and turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import os
import select
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

import click

from penstock import __version__, errors
from penstock._printable import printable, printable_lines
from penstock._secrets import redact

COMMANDS: dict[str, str] = {
    "demo": "The main job on real input that every machine has.",
    "index": "Make the raw index of a JSONL file.",
    "pack": "Tokenise and pack; killed and run again, it goes on.",
    "status": "How far shared or unfinished work on an output is.",
    "convert": "Convert a dataset to another format or layout.",
    "info": "What a dataset is: counts, sizes, schema.",
    "head": "Show the first samples.",
    "find": "Where samples are, by key, text or expression.",
    "diff": "Whether two datasets hold the same samples.",
    "trace": "The inputs and commands that made a dataset.",
    "verify": "Check a dataset; each finding says what to do.",
    "repair": "Mend known damage; only lists it without --write.",
    "merge": "Join datasets in the order given.",
    "shuffle": "Documents or lines in a random order.",
    "split": "Deal documents or lines to parts.",
    "filter": "Keep the documents or lines that fit.",
    "chunk": "One of N consecutive pieces of a dataset.",
    "prepare": "Energon's metadata for tar shards; the index of a JSONL file.",
    "prepare-media": "What the headers of media say, as an index.",
    "lint": "Read every sample; say where one can't be, and why.",
    "preview": "Show samples in the terminal.",
    "mount": "The parts of samples as files of a folder.",
    "plan": "What a run over a recipe will read.",
    "stage": "Copy to this host's cache what it will read.",
    "explain": "What a step of a run read; where a document came.",
    "modalities": "The commands of Modalities: same options, same files.",
    "energon": "The commands of Energon: same options, same files.",
}
_SYSTEM = 18
_OUR_FAULT = 70
_INTERRUPTED = 130
_MOST_CHARACTERS = 300


class LazyCommands(click.Group):
    """Lists commands without importing them: `--help` must not pay for numpy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return importlib.import_module(f"penstock.cli.cmd_{cmd_name.replace('-', '_')}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(status), what) for status, what in exit_codes()])


def exit_codes() -> Iterator[tuple[int, str]]:
    """Every exit status with its meaning."""
    yield 0, "done, or clean"
    yield 1, "verify or lint found an error, repair left one, find found nothing, diff a difference"
    yield 2, "wrong usage"
    kinds = [errors.PenstockError]
    while kinds:
        kind = kinds.pop(0)
        yield kind.exit_status, f"{kind.__name__}: {(kind.__doc__ or '').splitlines()[0].rstrip('.')}"
        kinds[:0] = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    yield _SYSTEM, "the system refused: rights, disk full, memory, input or output"
    yield _OUR_FAULT, "a fault of Penstock: an unexpected error"
    yield _INTERRUPTED, "interrupted"


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
@click.option("--debug", is_flag=True, envvar="PENSTOCK_DEBUG", help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Prepare, store, check, convert and feed LLM and multimodal training data."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point: runs a command and exits with its status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if "--debug" in arguments[:1] or os.environ.get("PENSTOCK_DEBUG"):
        sys.exit(cli.main(arguments, standalone_mode=False) or 0)
    try:
        status = cli.main(arguments, prog_name="penstock", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = 2
    except click.ClickException as error:
        vars(error)["message"] = redact(printable_lines(error.message))
        error.show()
        status = error.exit_code
    except click.Abort:  # what click makes of an interrupt
        status = _fail("interrupted", _INTERRUPTED)
    except errors.PenstockError as error:
        status = _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        status = _fail("interrupted", _INTERRUPTED)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(0)
        where = f"{printable(os.fsdecode(error.filename))}: " if error.filename else ""
        status = _fail(f"{where}{error.strerror or error}", _SYSTEM)
    except MemoryError as error:
        status = _fail(f"not enough memory{f': {error}' if str(error) else ''}", _SYSTEM)
    except SystemExit:
        raise
    except BaseException as error:  # a panic in Rust is no Exception
        status = _fail(_our_fault(error), _OUR_FAULT)
    sys.exit(status if isinstance(status, int) else 0)


def _is_output_closed() -> bool:
    """Whether the reader of our output has closed it: any other pipe that breaks is an error."""
    asked = select.poll()
    asked.register(1, 0)
    return any(event & select.POLLERR for _, event in asked.poll(0))


def _our_fault(error: BaseException) -> str:
    """One line about an error that nothing was written to raise."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "Please report it, with what `penstock --debug …` prints for the same command"
    return f"a fault of Penstock {__version__}: {text[:_MOST_CHARACTERS]}. {hint}"


def _fail(message: str, status: int) -> int:
    click.echo(redact(printable_lines(f"penstock: {message}")), err=True)
    return status
