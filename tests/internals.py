"""Internal names and hidden file names that black-box tests use: a rebuild edits this module, and no such test.

A black-box test imports public names of the package and this module. `tests/test_blackbox.py` checks it. A name stays
here, perhaps as a function that does the same by other means, as long as `make blackbox` runs tests that use it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_NAMES = """
_arrays: NoRoom as_index as_indices in_memory scatter stack
_digest: derive_key digest
_keywords: Reshaping
_kinds: is_lane_stream is_stream is_token_source
_limits: FRAMES LEAST_UNPACKED_BYTES MOST_FILES_DEEP MOST_NAMES MOST_NODES MOST_SQLITE_VALUE_BYTES SQLITE_STEPS
    SQLITE_STEPS_PER_BYTE UNPACKED_RATIO require_memory_for
_naming: nearest
_optional: require_package=require
_printable: PART_CHARACTERS printable printable_json printable_lines
_regular: open_descriptor open_regular read_regular require_regular_path require_regular_tree
_secrets: log_secrets=logger redact
check.lint: lint
check.summary: length_summary
check.repairs: write_side_file
cli._errors: HINTS_INSTEAD=_INSTEAD error_codes=codes exit_codes with_options
cli._findings: explain_finding=explain
cli._help: COMMANDS COMMAND_ALIASES=ALIASES COMMAND_EXAMPLES=EXAMPLES GROUPS HEADINGS HIDDEN_COMMANDS=HIDDEN
    MAX_UNGROUPED MODULES RENAMED_COMMANDS=RENAMED VERB_HEADINGS add_common find_heading
cli._machine: plug_ins
cli._options: common_options
cli._output: SERVING note progress
cli._pictures: known_way way_in
cli._reports: array_expression counted
cli.check: verify_command=verify
cli.main: cli main
cli.prepare: PREPARE_RUN_OPTIONS=_RUN_OPTIONS
codec.av: AVDecoder
codec.compress: Compression FAMILIES FrameCount compress decompress
codec.hashes: DocumentDigest hash_blocks
codec.image_header: read_image_header
codec.joined_digest: documents_digest_v2 is_joinable
codec.media_bytes: MediaBytes media_bytes
codec.parts: DecodeOptions decode_image decode_part
codec.pickles: EMPTY_LIST decode_pairs
compat.energon: ENERGON_INSTEAD=_INSTEAD
compat.energon.batching: batch_pad_stack batch_stack generic_batch
compat.energon.states: join_states
compat.energon.passes: Shares turns
compat.energon.source_info: get_source_info
compat.modalities.commands.config: load_config
compat.modalities.commands.data: calculate_hashed_seed join_embedded_stream_data read_file_list
compat.modalities.commands.instruct: chat_renderer create_instruction_tuning_data
compat.modalities.commands.pack: ModalitiesTokenizer=Tokenizer read_settings
    with_special_tokens=_with_special_tokens
compat.modalities.registry: continuous multi_dim_sampler
compat.streaming.epochs: StreamingEpochs=Epochs StreamingWorker=Worker
convert.columns: GROUPED choose_columns
convert.rows: FolderRows SourceRows converted_sample_digest=sample_digest
convert.tables: TableOptions TableRows
engine.options: RunOptions
engine.parts: PartMeta PartName encode_end
engine.plan: PLAN_VERSION=VERSION Plan require_same
engine.work: SharedWork=Work begin_log end_log log_entries open_shared=open_work
    unsettled_work=unfinished_entries work_folder
engine.status: WorkStatus status_of sweep
engine.token_files: TokenFiles cut_files
engine.token_blocks: Layout
formats._manifest: FileDigests
formats._planes: DTYPES PlaneEntry decode_planes encode_planes
formats._side_checks: MOST_FINDINGS
formats.jsonl: JSONL_FORMAT=FORMAT JsonlSource
formats.jsonl.build: IndexedLines index_path_for write_index
formats.jsonl.decompress: cut_stream
formats.jsonl.long_lines: fault_of_pieces
formats.jsonl.scan: fault_of
formats.jsonl.source: decode_line
formats.samples.folder: FOLDER_FORMAT=FORMAT
formats.samples.folder.files: list_files part_of_name=part_of
formats.samples.folder.source: FolderSource
formats.samples.media_index: MediaFilter MediaRow encode_metadata
formats.samples.sqlite: connect_sqlite=connect connect_sqlite_to_write=connect_to_write
formats.samples.webdataset.braces: BraceBudget=Budget collapse_braces=collapse expand_braces=expand
formats.samples.webdataset.nvmeta: Info Splits read_info read_splits split_shards
formats.samples.webdataset.shards: ShardTable
formats.samples.webdataset.source: open_raw
formats.shards.find_index: numeric_order parse_shard_name read_index
formats.shards.index_json: INDEX_NAME encode_index encode_merged parse_index
formats.shards.json_shards: decoder=_decoder
formats.shards.mds: MDS_FORMAT=FORMAT
formats.shards.merge: ShardPart=Part copy_shards merge_index
formats.shards.writer: ShardWriter parse_size
formats.tables.arrow: block_starts
formats.tables.hf: HfBlocks load_blocks
formats.tables.lines: TableLines
formats.tables.parquet: ParquetBlocks
formats.tokens.datatrove: DATATROVE_FORMAT=FORMAT
formats.tokens.flat_tokens: FLAT_TOKENS_FORMAT=FORMAT
formats.tokens.flat_tokens.encode: make_layout
formats.tokens.flat_tokens.source: FlatTokensSource sampled_files
formats.tokens.flat_tokens.writer: FlatTokensWriter
formats.tokens.folder.files: own_files
formats.tokens.folder.index: TokenFileEntry decode_token_file_index=decode_index
    encode_token_file_index=encode_index
formats.tokens.megatron: MEGATRON_FORMAT=FORMAT
formats.tokens.megatron.kept: MEGATRON_KEPT=KEPT
formats.tokens.megatron.layout: MOST_LENGTH kind_for
formats.tokens.megatron.source: MegatronSource
formats.tokens.pbin: PBIN_FORMAT=FORMAT
formats.tokens.pbin.index: MOST_PROBLEMS
formats.tokens.pbin.writer: PbinWriter
formats.tokens.raw_tokens: RAW_TOKENS_FORMAT=FORMAT
formats.tokens.zarr.decode: crc32c
load.adapters: TensorBoard WandB scalars
load.describe: describe
load.excluded: explain_excluded
load.explain: explain_document explain_step run_of
load.inverse: positions_of
load.metrics: Metrics
load.plan: plan plan_once=once
load.processes: ProcessWorkers
load.stage: stage
load.state: compare decode_state=decode
look.samples: sample_digest
look.exclude: excluded_samples
look.purge: purge
look.lineage: Origin
mix.places: BlockPlaces
mix.streaming: number_of
order.compat.modalities: ModalitiesShuffle
order.compat.seqax: SeqaxParams SeqaxPass
order.permutation: permute_one subkey
prepare.energon.guess: sample_type_named
prepare.energon.job: PrepareSummary metadata_work_folder=folder_of
prepare.energon.plan: DatasetOptions peek_webdataset plan_webdataset
prepare.energon.run: prepare_jsonl prepare_webdataset
prepare.media.rows: ShardMedia media_filter
prepare.media.run: MediaSummary
prepare.jsonl_index: build_index
prepare.tokens.chat.rows: ChatReader
prepare.tokens.chat.render: Renderer
prepare.tokens.chat.template: Conversation UnusableError
prepare.tokens.chat.sandbox: Meter
prepare.tokens.chat.template: ChatTemplate load_template
prepare.tokens.vocabulary: load_decoder
prepare.tokens.documents: extractor=_extractor
prepare.tokens.engines: GigatokenEngine TokenizersEngine load_engine
prepare.tokens.inputs: InputFile without_excluded
prepare.tokens.engines: load_tokenizer
prepare.tokens.reading: open_table row_groups_in=groups_in
prepare.tokens.inputs: Piece
prepare.tokens.model_files: TIKTOKEN_PATTERNS=PATTERNS
prepare.tokens.tokenizer: TokenizerSpec load_spec
prepare.tokens.tokenizer: MOST_TOKEN_ID no_panics require_loadable
recipe.flavored: Flavored
recipe.kinds: RECIPE_KINDS=KINDS
recipe.metadataset: read_metadataset
recipe.schema: read_schema recipe_schema schema_text
reshape.expression: Clock TookTooLong compile_expression each_at_most
reshape.filter: read_indices=_read_indices
reshape.outputs: RewriteOutput=Output Written once_of
reshape.reorder: SeededOrder ShuffleCost
reshape.row_job: CopyRows=Copy PartWriter SharedBlocks=_Blocks
reshape.rows: open_rows
reshape.shuffle: write_in_order
reshape.split: chunk chunk_range part_counts split
store._leftovers: KeptFiles=Kept
store._objects: Objects
store._requests: MOST_PARTS plan_requests
store._remote_output: RemoteClaim
store._requests: RemoteOptions
store.cache: CachedStore
store.compose: ObjectPart compose_client=_client
store.exclude_list: ExcludeEntry=Entry ExcludeList NO_LIST
store.compose: JoinedStaged
store.local: LocalStaged
store.names: COMMITTED_TOGETHER=TOGETHER OF_METADATA=METADATA_WORK nth_staged_name replaced_mark=writing_path
store.lock: hold_lock
store.mapped: MappedFile
store.memory: MemoryStaged
store.object_folder: FolderMark=Mark
store.place: Place place_of
store.put: put
store.remote: RemoteStore
store.place: resolve_remote=resolve within
store.row_map: read_row_map
store.side_file: decode_manifest encode_manifest read_side_file
store.unfinished: unfinished_mark=mark_path
view.draw.terminal: CELL_HEIGHT CELL_WIDTH terminal_picture=picture
view.facts.dataset: overview
view.facts.opening: open_target read_state
view.facts.samples: sample_at
view.facts.shelves: shelf
view.mount: MountedFiles=Files build_tree mount open_files
view.pages.app: make_app
view.pages.targets: Settings Targets
view.report: chosen_for_report=chosen
"""
"""Module of the package → names to import from here; `name=attribute` if the module calls it something else."""


def _table() -> dict[str, tuple[str, str]]:
    """Return name → module and attribute."""
    table: dict[str, tuple[str, str]] = {}
    for line in _NAMES.replace("\n    ", " ").strip().splitlines():
        module, names = line.split(": ")
        for entry in names.split():
            name, _, attribute = entry.partition("=")
            table[name] = f"penstock.{module}", attribute or name
    return table


_TABLE = _table()


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _TABLE:
        raise AttributeError(f"tests.internals has no {name!r}")
    module, attribute = _TABLE[name]
    return getattr(importlib.import_module(module), attribute)


def names() -> list[str]:
    """Return the names that this module takes from the package."""
    return sorted(_TABLE)


def use_version_02() -> None:
    """Take names from the modules of version 0.2.0, which this process imports; make functions that moved public."""
    _TABLE["build_index"] = "penstock.prepare.raw", "build_index"
    _TABLE["chunk"] = "penstock.reshape.chunk", "chunk"
    _TABLE["write_side_file"] = "penstock.check.verify", "write_side_file"
    package: Any = importlib.import_module("penstock")
    package.prepare_media = importlib.import_module("penstock.prepare.media.run").prepare_media


def verify_shared(
    path: Any,
    *,
    part: tuple[int, int] | None = None,
    no_work: bool = False,
    restart: bool = False,
    executor: Any = None,
    **options: Any,
) -> Any:
    """Run a part of a distributed check, or its finalize step."""
    from penstock.check.verification import verify_in_parts
    from penstock.engine.options import RunOptions

    how = RunOptions(executor, part=part, finish=part is None, no_work=no_work, restart=restart)
    return verify_in_parts(path, how, **options)


def find_paths(given: Any, *, follow_links: bool = False) -> list[str]:
    """Return the inputs of `pack` that paths, directories and globs stand for."""
    from penstock.prepare.tokens.inputs import find_files

    return find_files(given, follow_links=follow_links)[0]


def Tally(job: Any, task: Any, staged: Any) -> Any:
    """Return what encodes blocks of one field into a part."""
    from penstock.prepare.tokens.reading import Selection
    from penstock.prepare.tokens.tokenize import PartEncoder

    job.selection = Selection((job.field,))
    return PartEncoder(job, task, staged)


def indices_of(source: Any, key: str) -> Any:
    """Return the samples of a source that are or contain a document, int64[k]."""
    from penstock.load.inverse import Search

    return Search(key).indices(source)


def is_staged_name(name: str) -> bool:
    """Return whether a writer that isn't done leaves a file or directory of this name next to its output."""
    from penstock.store.names import is_staged_name

    return is_staged_name(name) or (name.startswith(".") and name.endswith(".new"))


def understand_conversion(
    source: Any, target: Any, *, workers: Any, executor: Any, overwrite: bool, sharing: Any, **more: Any
) -> Any:
    """Return the checked arguments of a conversion."""
    from dataclasses import replace

    from penstock.convert.request import parse_request

    run_options = replace(sharing, executor=executor, workers=workers, overwrite=overwrite)
    return parse_request(source, target, run_options=run_options, **more)


def plan_samples(request: Any) -> Any:
    """Return the job of a conversion of samples."""
    from penstock.convert.samples import make_sample_job

    return make_sample_job(request)


def write_samples(job: Any, output: Any, progress: Any) -> Any:
    """Write the output of a conversion of samples, and verify it."""
    from penstock.store.unfinished import Replaced

    job._replaced = Replaced(job.output, ())
    return job.write_alone()


def verify_samples(job: Any, output: Any, written: Any, progress: Any) -> Any:
    """Read the output of a conversion of samples back."""
    from penstock.convert.job import Written

    return job.check(Written(written.digest, None, written.samples))


LOADER_MODULES = ("penstock.load.loader", "penstock.load.processes")
"""Modules that worker processes of loaders import."""

CLI_MODULE = "penstock.cli.main"
"""Module of the command line, the first of weight that a command imports."""

WRITER_MODULES = (
    "penstock.prepare.jsonl_index",
    "penstock.formats.tokens.pbin",
    "penstock.prepare.tokens.pipeline",
    "penstock.prepare.tokens.tokenize",
)
"""Modules with writers, to import once before many children would."""

FACTS = "from penstock.view import facts\nfrom penstock.view.report import report"
"""Code that imports what pages and reports are made of."""

PLAN_MODULE = "penstock.load.plan"
"""Module with the function that returns a plan as it is drawn."""

ROW_MODULE = "penstock.reshape.row_job"
"""Module with the tasks of rows."""

RAW_MODULE = "penstock.prepare.jsonl_index"
"""Module with the writer of indexes."""


def object_transport() -> Any:
    """Return the class whose methods `put`, `copy` and `delete` change objects; None if no store has been used yet."""
    return getattr(sys.modules.get("penstock.store._objects"), "Objects", None)


def system_calls(store: Any) -> Any:
    """Return what a local store calls the system by."""
    return store._os


def command_of(verb: str) -> Any:
    """Return the click command of a verb."""
    modules = importlib.import_module("penstock.cli._help").MODULES
    return getattr(importlib.import_module(f"penstock.cli.{modules[verb]}"), verb.replace("-", "_"))


def command_module(verb: str) -> str:
    """Return the module of a verb's command."""
    return f"penstock.cli.{importlib.import_module('penstock.cli._help').MODULES[verb]}"


def blend_pages(blend: Any) -> int:
    """Return how many pages of places a blend holds."""
    return len(blend._places._pages)


def forget_plug_ins() -> None:
    """Have the plug-ins of formats looked up again."""
    importlib.import_module("penstock.formats")._plug_ins.cache_clear()


def object_key(store: Any, path: str) -> str:
    """Return the key of a path in a store of objects."""
    return store.key_of(path)


def geometry_of(source: Any) -> Any:
    """Return where the parts of a pbin are."""
    return source._geometry


# --- values and functions that a test changes --------------------------------------------------------------------

_REPLACED: dict[str, tuple[str, ...]] = {
    "hashed_bytes_at_once": ("_digest:_HASHED_BYTES",),
    "plain_numbers": ("cli._errors:plain_numbers",),
    "seconds_between_lines": ("cli._output:SECONDS",),
    "ticking": ("cli._output:ticking",),
    "explained_choice": ("cli.train:_chosen",),
    "explained_pictures": ("cli.train:_read_out",),
    "frame_count_begin": ("codec.compress:FrameCount.begin",),
    "hashes_block_bytes": ("codec.hashes:BLOCK_BYTES",),
    "pixels_of": ("codec.parts:_pixels_of",),
    "group_window": ("compat.energon.build:_GROUP_WINDOW",),
    "filters_run_tokens": ("compat.modalities.filters:_RUN_TOKENS",),
    "sampler_at_once": ("compat.modalities.sampler:_AT_ONCE",),
    "documents_run_tokens": ("convert.tokens:RUN_TOKENS",),
    "pass_groups": ("engine.run:_make_parts",),
    "assemble_groups": ("engine.groups:_link_shards",),
    "group_batches": ("engine.rows:Rows.batches",),
    "write_group": ("convert.samples:write_group",),
    "convert_task_tokens": ("convert.tokens:TASK_TOKENS",),
    "verify_samples": ("convert.samples:SampleJob.check",),
    "convert_verify_samples": ("convert.samples:SampleJob.check",),
    "verify_tokens": ("convert.tokens:TokenJob.check",),
    "convert_verify_tokens": ("convert.tokens:TokenJob.check",),
    "write_tokens": ("convert.tokens:TokenJob.commit_alone",),
    "clear_work": ("engine.work:Work.clear",),
    "wait_for_others": ("engine.run:sleep",),
    "plan_status": ("engine.status:status_of",),
    "time_of_status": ("engine.status:time.time",),
    "digest_block_bytes": ("engine.token_blocks:BLOCK_BYTES", "formats._proof:BLOCK_BYTES"),
    "digest_block_tokens": ("engine.token_blocks:BLOCK_TOKENS", "codec.hashes:BLOCK_TOKENS"),
    "put_token_file": ("engine.token_files:put",),
    "shuffled_part_tokens": ("engine.token_shuffle:_PART_TOKENS",),
    "shuffle_part": ("engine.token_shuffle:shuffle_part",),
    "checked_block_bytes": ("formats._side_checks:BLOCK_BYTES",),
    "hash_blocks": ("formats._side_checks:hash_blocks",),
    "jsonl_lines_to_index": ("formats.jsonl.build:IndexedLines",),
    "index_range_bytes": ("formats.jsonl.build:RANGE_BYTES",),
    "energon_block_bytes": ("formats.jsonl.energon:_BLOCK_BYTES",),
    "jsonl_index_in_memory_bytes": ("formats.jsonl.index:_IN_MEMORY_BYTES",),
    "decode_jsonl_index": ("formats.jsonl.index:decode_index",),
    "scan_block_bytes": ("formats.jsonl.scan:BLOCK_BYTES",),
    "scan_piece_bytes": ("formats.jsonl.scan:PIECE_BYTES",),
    "jsonl_flush_bytes": ("formats.jsonl.writer:_FLUSH_BYTES",),
    "most_names": ("formats.samples.webdataset.braces:MOST_NAMES",),
    "most_names_bytes": ("formats.samples.webdataset.braces:MOST_NAMES_BYTES",),
    "most_shard_bytes": ("formats.shards.writer:MOST_BYTES",),
    "table_lines_of": ("formats.tables.lines:TableLines._lines_of",),
    "group_batch_bytes": ("formats.tables.parquet:GROUP_BATCH_BYTES",),
    "least_group_bytes": ("formats.tables.parquet:LEAST_GROUP_BYTES",),
    "unpacked_ratio": ("formats.tables.parquet:UNPACKED_RATIO",),
    "docs_step": ("formats.tokens.checks:_DOCS_STEP",),
    "scan_tokens": ("formats.tokens.checks:_SCAN_TOKENS",),
    "flat_tokens_most_findings": ("formats.tokens.flat_tokens.check:MOST_FINDINGS",),
    "flat_tokens_derived_items": ("formats.tokens.flat_tokens.source:_DERIVED_ITEMS",),
    "few_found_files": ("formats.tokens.folder.found:_FEW",),
    "format_of_found_files": ("formats.tokens.folder.found:get_format",),
    "megatron_sequence_starts": ("formats.tokens.megatron.source:sequence_starts",),
    "pbin_repair_run_tokens": ("formats.tokens.pbin.repair:RUN_TOKENS",),
    "most_empty_windows": ("load.lanes:_MOST_EMPTY_WINDOWS",),
    "time_of_exclusion": ("look.exclude:now", "look.purge:now"),
    "find_expression_seconds": ("look.find:EXPRESSION_SECONDS",),
    "purge_digests": ("look.purge:_digests",),
    "look_stretch_samples": ("look.samples:_STRETCH_SAMPLES",),
    "concat_documents_derived": ("mix.concat:_DERIVED_DOCS",),
    "large_energon_index_bytes": ("prepare.energon.index:LARGE_BYTES",),
    "energon_group_samples": ("prepare.energon.index:_GROUP_SAMPLES",),
    "energon_group_shards": ("prepare.energon.index:_GROUP_SHARDS",),
    "open_work_of_prepare": ("engine.work:open_work",),
    "scan_shard_of_prepare": ("prepare.energon.index:scan_shard",),
    "clear_work_of_media": ("engine.work:Work.clear",),
    "dataset_of_media": ("prepare.media.run:dataset_at",),
    "open_work_of_media": ("engine.work:open_work",),
    "files_a_task": ("prepare.media.run:FILES_A_TASK",),
    "read_media_rows": ("prepare.media.run:read_rows",),
    "lines_to_index": ("prepare.jsonl_index:IndexedLines",),
    "place_of_index": ("prepare.jsonl_index:place_of",),
    "large_lines_bytes": ("prepare.jsonl_index:_LARGE_BYTES",),
    "index_task_bytes": ("prepare.jsonl_index:_TASK_BYTES",),
    "encode_lines_index": ("prepare.jsonl_index:_index_small",),
    "format_of_packed_files": ("prepare.tokens.request:get_format",),
    "rendered_text": ("prepare.tokens.chat.render:Renderer._text",),
    "make_bordered": ("prepare.tokens.chat.render:make_bordered",),
    "encode_task": ("prepare.tokens.encode:encode_task",),
    "gigatoken_engine_encode": ("prepare.tokens.engines:GigatokenEngine.encode",),
    "whole_digest_bytes": ("prepare.tokens.inputs:WHOLE_DIGEST_BYTES",),
    "describe_input": ("prepare.tokens.inputs:_describe",),
    "sample_fingerprint": ("prepare.tokens.inputs:sample_fingerprint",),
    "try_gigatoken": ("prepare.tokens.engine_choice:try_gigatoken",),
    "open_work_of_pack": ("engine.work:open_work",),
    "plan_of_pack": ("prepare.tokens.request:Plan",),
    "default_task_bytes": ("prepare.tokens.request:default_task_bytes",),
    "load_table_blocks": ("prepare.tokens.reading:load_blocks",),
    "cut_stream": ("prepare.tokens.inputs:cut_stream",),
    "task_bytes_of_pack": ("prepare.tokens.inputs:default_task_bytes",),
    "long_tokens": ("prepare.tokens.tokenize:_LONG_TOKENS",),
    "load_engine": ("prepare.tokens.tokenize:load_engine",),
    "most_token_id": ("prepare.tokens.tokenizer:MOST_TOKEN_ID",),
    "probe_bytes": ("prepare.tokens.tokenizer:_PROBE_BYTES",),
    "bytes_held_by_pack": ("prepare.tokens.request:_HELD_BYTES",),
    "read_document": ("recipe.context:read_document",),
    "expression_seconds": ("reshape.filter:EXPRESSION_SECONDS",),
    "each_at_most": ("reshape.filter:each_at_most",),
    "copy_of_merge": ("reshape.merge:Copy",),
    "settle_waiting": ("reshape.sidecars:settle_waiting",),
    "digest_part_bytes": ("reshape.outputs:_PART_BYTES",),
    "planes_run_tokens": ("reshape.sidecars:_RUN_TOKENS",),
    "reorder_memory_bytes": ("reshape.reorder:MEMORY_BYTES",),
    "reorder_least_memory_bytes": ("reshape.reorder:_LEAST_MEMORY_BYTES",),
    "gathers_in_memory": ("reshape.reorder:_gathers",),
    "write_part_of_rows": ("reshape.row_job:PartWriter.__call__",),
    "row_task_bytes": ("reshape.row_job:TASK_BYTES",),
    "blocks_commit": ("reshape.row_job:_Blocks.commit",),
    "groups_there_of_rows": ("reshape.shards:groups_there",),
    "open_writer_of_rows": ("reshape.row_job:open_writer",),
    "rows_run_bytes": ("engine.rows:RUN_BYTES",),
    "defaults_of_runs": ("engine.rows:runs.__defaults__",),
    "shard_task_bytes": ("reshape.shards:TASK_BYTES",),
    "groups_there_of_merge": ("reshape.shards:groups_there",),
    "shard_group_bytes": ("reshape.shards:_GROUP_BYTES",),
    "shuffle_task_bytes": ("reshape.shuffle:TASK_BYTES",),
    "shuffle_least_memory_bytes": ("reshape.shuffle:_LEAST_MEMORY_BYTES",),
    "tar_task_bytes": ("reshape.tar_job:TASK_BYTES",),
    "tar_samples_at_once": ("reshape.tar_job:_AT_ONCE",),
    "place_of_descriptor": ("store._links:_place_of",),
    "open_objects": ("store._objects:_open",),
    "most_mapped": ("store.derived:_MOST_MAPPED",),
    "one_put_bytes": ("store._remote_output:ONE_PUT_BYTES",),
    "least_part_bytes": ("store.compose:LEAST_PART_BYTES",),
    "plan_parts": ("store.compose:plan_parts",),
    "remove_unfinished_mark": ("store.unfinished:remove_mark",),
    "batch_sample_of": ("view.facts.batches:sample_of",),
    "mount_server": ("view.mount:mount",),
    "view_server": ("view.pages.serve:view",),
    "view_start_seconds": ("view.pages.targets:START_SECONDS",),
    "open_view_target": ("view.pages.targets:open_target",),
}
"""What a test replaces → the attributes to set, as `module:attribute`. With none, nothing is replaced any more."""


def owners_of(name: str) -> Iterator[tuple[Any, str]]:
    """Yield the objects and their attributes that hold a replaceable value."""
    for place in _REPLACED[name]:
        module, _, path = place.partition(":")
        *parents, attribute = path.split(".")
        owner = importlib.import_module(f"penstock.{module}")
        for parent in parents:
            owner = getattr(owner, parent)
        yield owner, attribute


def owner_of(name: str) -> tuple[Any, str]:
    """Return the object and the attribute that hold a value, for `mock.patch.object`."""
    return next(owners_of(name))


def replaceable() -> list[str]:
    """Return the names that `replace` takes."""
    return sorted(_REPLACED)


def current(name: str) -> Any:
    """Return a replaceable value as it is now."""
    owner, attribute = owner_of(name)
    return getattr(owner, attribute)


def replace(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Set a replaceable value for the rest of a test."""
    for owner, attribute in owners_of(name):
        patch.setattr(owner, attribute, value)


def code_of(name: str) -> str:
    """Return an expression for a replaceable value, for the code of another process."""
    module, _, path = _REPLACED[name][0].partition(":")
    return f"__import__('importlib').import_module('penstock.{module}').{path}"


def code_to_set(name: str, value: str) -> str:
    """Return code that sets a replaceable value in another process."""
    return f"{code_of(name)} = {value}"


# --- hidden files ------------------------------------------------------------------------------------------------

RANDOM_PART = r"[0-9a-f]{8}(?=\.staged)"
"""Regular expression of the random part of a hidden name."""

WAITING_EXCLUDE_LIST = ".penstock.exclude.jsonl.next"
"""What the name of an exclude list ends with until its dataset is complete."""

WORK_FILE = r"\.work/"
"""Regular expression in the path of a file of a work folder."""

METADATA_WORK = ".nv-meta.work"
"""Name of the work folder of metadata, in the dataset."""

STALE_WORK = "0123456789abcdef"
"""Name of a folder in a work folder, of a plan."""

WORK = ".work"
"""Name of the work folder in an output that is a folder of files."""


def final_name(name: str) -> str:
    """Return the name that a waiting file gets at last."""
    return name.removesuffix(".next")


def is_lock(name: str) -> bool:
    """Tell whether a file is a writer's lock."""
    return name.endswith(".lock.staged")


def is_side_file(name: str) -> bool:
    """Tell whether a file is one of ours next to data, or waits to become one."""
    return name.endswith((".next", ".staged")) or ".penstock" in name or ".planes" in name


def is_plan(name: str) -> bool:
    """Tell whether a file is the plan of a work folder."""
    return name.endswith(".work/plan")


def is_locked(path: Path, *, shared: bool = False) -> bool:
    """Tell whether a process holds a lock on a file; with `shared`, an exclusive one."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def understood(error: BaseException) -> tuple[int, str]:
    """Return the exit status of the command line for an error, and its message."""
    failure, status = importlib.import_module("penstock.cli.main")._understand(error, [])
    return status, failure["message"]


def is_work(name: str) -> bool:
    """Tell whether a file belongs to a work folder."""
    return ".work/" in name


def is_hidden(name: str) -> bool:
    """Tell whether no reader looks at a file: a staged one, or work that is resumed later."""
    return any(one.startswith(".") and one.endswith((".staged", ".work", ".unfinished")) for one in name.split("/"))


def is_mark_or_lock(name: str) -> bool:
    """Tell whether a file is a mark of an unfinished output, or the lock of a work folder."""
    return re.search(r"\.unfinished$|/lock$", name) is not None


def work_folders(folder: Path) -> list[Path]:
    """Return the work folders next to outputs in a folder."""
    return sorted(folder.glob(".*.work"))


def old_pair_of(prefix: Path) -> Path:
    """Return the prefix that an old pair of Megatron files has while it is replaced."""
    return prefix.with_name(f".{prefix.name}.replaced")


def work_name(output: str) -> str:
    """Return the name of the work folder next to an output."""
    return f".{output}.work"


def work_beside(output: Path) -> Path:
    """Return the work folder next to an output."""
    return output.with_name(work_name(output.name))


def work_within(output: Path) -> Path:
    """Return the work folder in an output that is a folder of files."""
    return output / WORK


def has_work(path: Any) -> bool:
    """Tell whether a path is a work folder or in one."""
    return WORK in str(path)


def is_replaced(path: Any) -> bool:
    """Tell whether a path is data set aside while it is replaced."""
    return ".replaced" in str(path)


def lock_name(output: str) -> str:
    """Return the name of a writer's lock next to an output."""
    return f".{output}.lock.staged"


def staged_name(name: str, random: str = "01234567") -> str:
    """Return the name of a staged file or folder."""
    return f".{name}.{random}.staged"


def is_staged(name: str) -> bool:
    """Tell whether a file is staged, or a lock."""
    return name.endswith(".staged")


def in_staged_folder(name: str) -> bool:
    """Tell whether a file is in a staged folder."""
    return ".staged/" in name


def waiting_name(name: Any) -> Any:
    """Return the name that a file has until its dataset is complete."""
    return f"{name}.next" if isinstance(name, str) else name.with_name(f"{name.name}.next")


def is_waiting(name: str) -> bool:
    """Tell whether a file waits for its dataset to be complete."""
    return name.endswith(".next")


def waiting_files(folder: Path) -> list[Path]:
    """Return the files below a folder that wait for their dataset to be complete."""
    return sorted(folder.rglob("*.next"))


def is_left_over(name: str) -> bool:
    """Tell whether a file or folder belongs to unfinished work."""
    return name.endswith((".next", ".work", ".staged", "-new"))


def is_unfinished(name: str) -> bool:
    """Tell whether a path is work, a mark or a lock."""
    return any(part in name for part in ("unfinished", "staged", ".work"))


def pieces_beside(output: Path) -> Path:
    """Return the folder next to an output in which workers leave pieces."""
    return output.with_name(f".{output.name}.pieces")
