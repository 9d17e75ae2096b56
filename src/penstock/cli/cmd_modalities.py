"""`penstock modalities data …`: the command lines of Modalities, so that a script changes by one word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli._output import LocalPath, emit, json_option, progress

if TYPE_CHECKING:
    from penstock.compat.modalities.commands.data import Done

Command = TypeVar("Command", bound=Callable[..., Any])
Advance = Callable[[int, str], None]

policy_option = click.option(
    "--file_existence_policy",
    type=click.Choice(["skip", "error", "override"]),
    default="error",
    show_default=True,
    help="What to do if the output exists.",
)


def chunk_options(command: Command) -> Command:
    """Add the options of the two commands that write chunks."""
    for option in (
        click.option("--global_seed", type=int, default=None, help="Seed of the order, together with the chunk id."),
        policy_option,
        click.option("--num_chunks", type=int, required=True, help="Number of chunks."),
        click.option("--chunk_id", type=int, required=True, help="The chunk to write, from 0."),
        click.option("--output_chunk_file_path", type=LocalPath(), required=True, help="Path of the chunk."),
        click.option(
            "--input_data_root_path",
            type=LocalPath(),
            required=True,
            help="Directory that the paths in the list are relative to.",
        ),
        click.option(
            "--input_file_list_path", type=LocalPath(), required=True, help="List of files, one path per line."
        ),
    ):
        command = option(command)
    return command


@click.group()
def command() -> None:
    """Run the commands of Modalities: same options, same files.

    Cases in which Modalities silently loses data are fixed.
    """


@command.group()
def data() -> None:
    """Index, pack, merge, shuffle and chunk data."""


@data.command("create_raw_index")
@click.argument("src_path", type=LocalPath())
@click.option("--index_path", type=LocalPath(), default=None, help="Path of the index, instead of next to the file.")
@policy_option
@json_option
def create_raw_index(src_path: Path, index_path: Path | None, file_existence_policy: str, as_json: bool) -> int:
    """Index a JSONL file."""

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.data import create_raw_data_index

        return create_raw_data_index(src_path, index_path, file_existence_policy, progress=advance)

    return _run(work, as_json)


@data.command("pack_encoded_data")
@click.argument("config_path", type=LocalPath())
@policy_option
@json_option
def pack_encoded_data(config_path: Path, file_existence_policy: str, as_json: bool) -> int:
    """Tokenize and pack an indexed JSONL file.

    A YAML file configures it.
    """

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.config import load_config
        from penstock.compat.modalities.commands.pack import pack_encoded_data

        return pack_encoded_data(load_config(config_path), file_existence_policy, progress=advance)

    return _run(work, as_json)


@data.command("merge_packed_data")
@click.argument("src_paths", type=LocalPath(exists=True), nargs=-1, required=True)
@click.argument("target_path", type=LocalPath())
@json_option
def merge_packed_data(src_paths: tuple[Path, ...], target_path: Path, as_json: bool) -> int:
    """Merge packed files into one.

    A source is a packed file, or a directory with packed files.
    """
    if target_path.exists():
        raise click.BadParameter(f"{target_path} exists already.", param_hint="TARGET_PATH")

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.data import merge_packed_data_files

        return merge_packed_data_files(src_paths, target_path, progress=advance)

    return _run(work, as_json)


@data.command("shuffle_tokenized_data")
@click.option("--input_data_path", type=LocalPath(exists=True), required=True, help="A packed file.")
@click.option("--output_data_path", type=LocalPath(), required=True, help="Path of the shuffled file.")
@click.option("--batch_size", type=int, default=100, show_default=True, help="Has no effect on the result.")
@policy_option
@click.option("--seed", type=int, default=None, help="Seed of the order.")
@json_option
def shuffle_tokenized_data(as_json: bool, **options: Any) -> int:
    """Shuffle the documents of a packed file."""

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.data import shuffle_tokenized_data

        return shuffle_tokenized_data(**options, progress=advance)

    return _run(work, as_json)


@data.command("shuffle_jsonl_data")
@click.option("--input_data_path", type=LocalPath(exists=True), required=True, help="A JSONL file.")
@click.option("--output_data_path", type=LocalPath(), required=True, help="Path of the shuffled file.")
@policy_option
@click.option("--seed", type=int, default=None, help="Seed of the order.")
@json_option
def shuffle_jsonl_data(as_json: bool, **options: Any) -> int:
    """Shuffle the lines of a JSONL file."""

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.data import shuffle_jsonl_data

        return shuffle_jsonl_data(**options, progress=advance)

    return _run(work, as_json)


@data.command("create_shuffled_dataset_chunk")
@chunk_options
@json_option
def create_shuffled_dataset_chunk(
    input_file_list_path: Path, input_data_root_path: Path, as_json: bool, **options: Any
) -> int:
    """Write a shuffled chunk of packed files.

    A list names the files; their suffixes are replaced by .pbin.
    """

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.data import create_shuffled_dataset_chunk, read_file_list

        return create_shuffled_dataset_chunk(
            read_file_list(input_file_list_path, input_data_root_path, ".pbin"), **options, progress=advance
        )

    return _run(work, as_json)


@data.command("create_shuffled_jsonl_chunk")
@chunk_options
@json_option
def create_shuffled_jsonl_chunk(
    input_file_list_path: Path, input_data_root_path: Path, as_json: bool, **options: Any
) -> int:
    """Write a shuffled chunk of JSONL files.

    A list names the files; their suffixes are replaced by .jsonl.
    """

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.data import create_shuffled_jsonl_dataset_chunk, read_file_list

        return create_shuffled_jsonl_dataset_chunk(
            read_file_list(input_file_list_path, input_data_root_path, ".jsonl"), **options, progress=advance
        )

    return _run(work, as_json)


@data.command("prepare_instruction_tuning_data")
@click.option("--config_file_path", type=LocalPath(exists=True), required=True, help="A YAML file.")
@json_option
def prepare_instruction_tuning_data(config_file_path: Path, as_json: bool) -> int:
    """Render, split and pack conversations.

    A YAML file configures the chat template, the splits and the packing.
    """

    def work(advance: Advance) -> Done:
        from penstock.compat.modalities.commands.instruct import create_instruction_tuning_data

        return create_instruction_tuning_data(config_file_path, progress=advance)

    return _run(work, as_json)


def _run(work: Callable[[Advance], Done], as_json: bool) -> int:
    with progress(click.get_current_context().info_name or "working", total=None, unit="documents") as advance:
        done = work(advance)
    lines = [done.summary]
    if done.notes:
        lines.append("note: " + "; ".join(done.notes))
    if done.differences:
        lines.append("different from Modalities: " + "; ".join(done.differences))
    data = {"path": done.path, "summary": done.summary, "differences": done.differences, "notes": done.notes}
    emit(data, as_json=as_json, text="\n".join(lines))
    return 0
