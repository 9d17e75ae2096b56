"""`penstock modalities data …`: the command lines of Modalities, so that a script changes by one word."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._output import progress
from penstock.cli._reports import emit
from penstock.compat import modalities as compat

if TYPE_CHECKING:
    from penstock.compat.modalities.commands.data import Done

Command = TypeVar("Command", bound=Callable[..., Any])


class LocalPath(click.Path):
    """A local path or `file://` URL, converted to a `pathlib.Path`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; raise `ConfigError` for a URL of another store."""
        from penstock.store.place import local_path

        name = "this" if param is None else param.human_readable_name
        path = local_path(value, name)
        if not self.exists:
            return Path(os.fsdecode(super().convert(path, param, ctx)))
        try:
            os.stat(path)  # not click's own check, which reports every error as a missing file
        except (FileNotFoundError, NotADirectoryError, ValueError):
            self.fail(f"Path {click.format_filename(path)!r} does not exist.", param, ctx)
        return Path(path)


def _paths(**paths: str) -> Callable[[Command], Command]:
    """Add required options that take a local path, with their help; the path of "A …" must exist."""

    def add(command: Command) -> Command:
        for name, text in reversed(paths.items()):
            path = LocalPath(exists=text.startswith("A "))
            command = click.option(f"--{name}", type=path, required=True, help=text)(command)
        return command

    return add


policy_option = click.option(
    "--file_existence_policy",
    type=click.Choice(["skip", "error", "override"]),
    default="error",
    show_default=True,
    help="What to do if the output exists.",
)
seed_option = click.option("--seed", type=int, help="Seed of the order.")


@click.group()
def modalities() -> None:
    """Run the commands of Modalities: same options, same files.

    Cases in which Modalities silently loses data are fixed.
    """


@modalities.group()
def data() -> None:
    """Index, pack, merge, shuffle and chunk data."""


@data.command("create_raw_index")
@click.argument("src_path", type=LocalPath())
@click.option("--index_path", type=LocalPath(), help="Path of the index, instead of next to the file.")
@policy_option
def create_raw_index(src_path: Path, index_path: Path | None, file_existence_policy: str) -> None:
    """Index a JSONL file."""
    _run(compat.create_raw_data_index, src_path, index_path, file_existence_policy)


@data.command("pack_encoded_data")
@click.argument("config_path", type=LocalPath())
@policy_option
def pack_encoded_data(config_path: Path, file_existence_policy: str) -> None:
    """Tokenize and pack an indexed JSONL file.

    A YAML file configures it.
    """
    from penstock.compat.modalities.commands.config import load_config

    _run(compat.pack_encoded_data, load_config(config_path), file_existence_policy)


@data.command("merge_packed_data")
@click.argument("src_paths", type=LocalPath(exists=True), nargs=-1, required=True)
@click.argument("target_path", type=LocalPath())
def merge_packed_data(src_paths: tuple[Path, ...], target_path: Path) -> None:
    """Merge packed files into one.

    A source is a packed file, or a directory with packed files.
    """
    if target_path.exists():
        raise click.BadParameter(f"{target_path} exists already.", param_hint="TARGET_PATH")
    _run(compat.merge_packed_data_files, src_paths, target_path)


@data.command("shuffle_tokenized_data")
@_paths(input_data_path="A packed file.", output_data_path="Path of the shuffled file.")
@click.option("--batch_size", type=int, default=100, show_default=True, help="Has no effect on the result.")
@policy_option
@seed_option
def shuffle_tokenized_data(**options: Any) -> None:
    """Shuffle the documents of a packed file."""
    _run(compat.shuffle_tokenized_data, **options)


@data.command("shuffle_jsonl_data")
@_paths(input_data_path="A JSONL file.", output_data_path="Path of the shuffled file.")
@policy_option
@seed_option
def shuffle_jsonl_data(**options: Any) -> None:
    """Shuffle the lines of a JSONL file."""
    _run(compat.shuffle_jsonl_data, **options)


def _add_chunk_command(name: str, function: str, files: str, suffix: str) -> None:
    """Add a command that writes a shuffled chunk of the files in a list."""
    text = f"A list names the files; their suffixes are replaced by {suffix}."

    @data.command(name, help=f"Write a shuffled chunk of {files} files.\n\n{text}")
    @_paths(
        input_file_list_path="List of files, one path per line.",
        input_data_root_path="Directory that the paths in the list are relative to.",
        output_chunk_file_path="Path of the chunk.",
    )
    @click.option("--chunk_id", type=int, required=True, help="The chunk to write, from 0.")
    @click.option("--num_chunks", type=int, required=True, help="Number of chunks.")
    @policy_option
    @click.option("--global_seed", type=int, help="Seed of the order, together with the chunk id.")
    def write_chunk(input_file_list_path: Path, input_data_root_path: Path, **options: Any) -> None:
        from penstock.compat.modalities.commands.data import read_file_list

        paths = read_file_list(input_file_list_path, input_data_root_path, suffix)
        _run(getattr(compat, function), paths, **options)


_add_chunk_command("create_shuffled_dataset_chunk", "create_shuffled_dataset_chunk", "packed", ".pbin")
_add_chunk_command("create_shuffled_jsonl_chunk", "create_shuffled_jsonl_dataset_chunk", "JSONL", ".jsonl")


@data.command("prepare_instruction_tuning_data")
@_paths(config_file_path="A YAML file.")
def prepare_instruction_tuning_data(config_file_path: Path) -> None:
    """Render, split and pack conversations.

    A YAML file configures the chat template, the splits and the packing.
    """
    from penstock.compat.modalities.commands.instruct import create_instruction_tuning_data

    _run(create_instruction_tuning_data, config_file_path)


def _run(work: Callable[..., Done], *arguments: Any, **options: Any) -> None:
    with progress(click.get_current_context().info_name or "working", total=None, unit="documents") as advance:
        done = work(*arguments, **options, progress=advance)
    lines = [done.summary]
    if done.notes:
        lines.append("note: " + "; ".join(done.notes))
    if done.differences:
        lines.append("different from Modalities: " + "; ".join(done.differences))
    data = {"path": done.path, "summary": done.summary, "differences": done.differences, "notes": done.notes}
    emit(data, "\n".join(lines))
