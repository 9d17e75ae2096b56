"""Internal names and hidden file names that black-box tests use: a rebuild edits this module, and no such test.

A black-box test imports public names of the package and this module. `tests/test_blackbox.py` checks it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = """
_columns: NoRoom in_memory scatter stack
_digest: derive_key digest
_index: as_index as_indices
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
check.verify: verify_shared write_side_file
cli._commands: COMMANDS COMMAND_ALIASES=ALIASES COMMAND_EXAMPLES=EXAMPLES GROUPS HIDDEN_COMMANDS=HIDDEN
    RENAMED_COMMANDS=RENAMED
cli._common: add_common common_options
cli._errors: error_codes=codes exit_codes
cli._headings: HEADINGS MAX_UNGROUPED VERB_HEADINGS find_heading
cli._heartbeat: SERVING
cli._hints: HINTS_INSTEAD=_INSTEAD with_options
cli._machine: plug_ins
cli._output: counted note progress
cli._pictures: known_way way_in
cli._sharing: array_expression
cli.cmd_verify: verify_command=command
cli.main: cli main
codec.av: AVDecoder
codec.compress: Compression FAMILIES compress decompress
codec.hashes: DocumentDigest hash_blocks
codec.image_header: read_image_header
codec.joined_digest: documents_digest_v2 is_joinable
codec.media_bytes: MediaBytes media_bytes
codec.parts: DecodeOptions decode_image decode_part
codec.pickles: EMPTY_LIST decode_pairs
compat.energon.absent: ENERGON_INSTEAD=INSTEAD
compat.energon.loader: join_states
compat.energon.passes: Shares turns
compat.modalities.commands.config: load_config
compat.modalities.commands.data: calculate_hashed_seed join_embedded_stream_data read_file_list
compat.modalities.commands.instruct: chat_renderer create_instruction_tuning_data
compat.modalities.commands.pack: ModalitiesTokenizer=Tokenizer read_settings
    with_special_tokens=_with_special_tokens
convert.asked: understand_conversion=understand
convert.columns: GROUPED choose_columns
convert.rows: SourceRows converted_sample_digest=sample_digest
convert.tables: TableOptions TableRows
engine.plan: PLAN_VERSION=VERSION Plan require_same
engine.shared: OF_METADATA SharedWork open_shared work_folder
engine.status: WorkStatus status_of sweep
formats._side_checks: MOST_FINDINGS
formats.jsonl: JSONL_FORMAT=FORMAT
formats.jsonl.build: IndexedLines index_path_for write_index
formats.jsonl.decompress: cut_stream
formats.jsonl.long_lines: fault_of_pieces
formats.jsonl.scan: fault_of
formats.jsonl.source: decode_line
formats.samples.folder: FOLDER_FORMAT=FORMAT
formats.samples.media_index: MediaFilter MediaRow
formats.samples.sqlite: connect_sqlite=connect connect_sqlite_to_write=connect_to_write
formats.samples.webdataset.braces: BraceBudget=Budget collapse_braces=collapse expand_braces=expand
formats.samples.webdataset.nvmeta: Info Splits read_splits split_shards
formats.samples.webdataset.shards: ShardTable
formats.samples.webdataset.source: open_raw
formats.shards.find_index: read_index
formats.shards.index_json: INDEX_NAME encode_index encode_merged parse_index
formats.shards.mds: MDS_FORMAT=FORMAT
formats.shards.merge: merge_index
formats.shards.names: numeric_order parse_shard_name
formats.shards.writer: ShardWriter parse_size
formats.tables.arrow: block_starts
formats.tables.hf: HfBlocks
formats.tables.lines: TableLines
formats.tables.parquet: ParquetBlocks
formats.tokens.datatrove: DATATROVE_FORMAT=FORMAT
formats.tokens.flat_tokens: FLAT_TOKENS_FORMAT=FORMAT
formats.tokens.folder.files: own_files
formats.tokens.folder.index: TokenFileEntry decode_token_file_index=decode_index
    encode_token_file_index=encode_index
formats.tokens.megatron: MEGATRON_FORMAT=FORMAT
formats.tokens.megatron.kept: MEGATRON_KEPT=KEPT
formats.tokens.pbin: PBIN_FORMAT=FORMAT
formats.tokens.pbin.writer: PbinWriter
formats.tokens.raw_tokens: RAW_TOKENS_FORMAT=FORMAT
formats.tokens.zarr.decode: crc32c
load.adapters: TensorBoard WandB scalars
load.describe: describe
load.excluded: explain_excluded
load.explain: explain_document explain_step run_of
load.metrics: Metrics
load.plan: plan
load.stage: stage
look.digests: sample_digest
look.exclude: excluded_samples
look.purge: purge
look.trace: Origin
mix.places: BlockPlaces
mix.streaming: number_of
order.compat.modalities: ModalitiesShuffle
order.compat.seqax: SeqaxParams SeqaxPass
order.permutation: permute_one subkey
prepare.energon.guess: sample_type_named
prepare.energon.request: PrepareSummary
prepare.energon.run: DatasetOptions peek_webdataset plan_webdataset prepare_jsonl prepare_webdataset
prepare.energon.share: metadata_work_folder=folder_of
prepare.media.rows: ShardMedia media_filter
prepare.media.run: MediaSummary
prepare.raw: build_index
prepare.tokens.chat.render: Conversation Renderer UnusableError
prepare.tokens.chat.template: ChatTemplate load_template
prepare.tokens.decode: load_decoder
prepare.tokens.engines: GigatokenEngine TokenizersEngine load_engine
prepare.tokens.inputs: InputFile find_paths without_excluded
prepare.tokens.load_tokenizer: load_tokenizer
prepare.tokens.tables: open_table row_groups_in=groups_in
prepare.tokens.tiktoken_ranks: TIKTOKEN_PATTERNS=PATTERNS
prepare.tokens.tokenizer: TokenizerSpec load_spec
prepare.tokens.tokenizer_json: MOST_TOKEN_ID no_panics require_loadable
recipe.flavored: Flavored
recipe.metadataset: read_metadataset
reshape.chunk: chunk chunk_range
reshape.cost: ShuffleCost
reshape.expression: compile_expression
reshape.reorder: SeededOrder
reshape.rows: open_rows
reshape.split: part_counts
reshape.time_limit: Clock TookTooLong each_at_most
store._leftovers: KeptFiles=Kept nth_staged_name
store._objects: Objects
store._ranges: MOST_PARTS plan_requests
store._remote_claims: RemoteClaim
store._replaced: is_staged_name
store.cache: CachedStore
store.exclude_list: ExcludeEntry=Entry ExcludeList NO_LIST
store.joining: JoinedStaged
store.local: COMMITTED_TOGETHER=TOGETHER LocalStaged
store.lock: hold_lock
store.mapped: MappedFile
store.memory: MemoryStaged
store.place: Place place_of
store.put: put
store.remote: RemoteStore
store.resolve: within
store.row_map: read_row_map
store.side_file: decode_manifest encode_manifest read_side_file
store.unfinished: unfinished_mark=mark_path
view.draw.terminal_pictures: CELL_HEIGHT CELL_WIDTH terminal_picture=picture
view.facts.dataset: overview
view.facts.opening: open_target read_state
view.facts.samples: sample_at
view.mount: open_files
view.pages.app: make_app
view.pages.targets: Settings Targets
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


LOADER_MODULES = ("penstock.load.loader", "penstock.load.processes")
"""Modules that worker processes of loaders import."""


# --- values and functions that a test changes --------------------------------------------------------------------

_REPLACED: dict[str, tuple[str, ...]] = {}
"""What a test replaces → the attributes to set, as `module:attribute`."""


def owners_of(name: str) -> Iterator[tuple[Any, str]]:
    """Yield the objects and their attributes that hold a replaceable value."""
    for place in _REPLACED[name]:
        module, _, path = place.partition(":")
        *parents, attribute = path.split(".")
        owner = importlib.import_module(f"penstock.{module}")
        for parent in parents:
            owner = getattr(owner, parent)
        yield owner, attribute


def replaceable() -> list[str]:
    """Return the names that `replace` takes."""
    return sorted(_REPLACED)


def current(name: str) -> Any:
    """Return a replaceable value as it is now."""
    owner, attribute = next(owners_of(name))
    return getattr(owner, attribute)


def replace(patch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Set a replaceable value for the rest of a test."""
    for owner, attribute in owners_of(name):
        patch.setattr(owner, attribute, value)


# --- hidden files ------------------------------------------------------------------------------------------------
