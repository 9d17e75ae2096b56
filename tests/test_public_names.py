"""The public names, literally: a change here is a change for every user."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

NAMES = {
    "penstock": {
        "Balance",
        "BestFit",
        "Blend",
        "Chunk",
        "Concat",
        "Epochs",
        "FillInTheMiddle",
        "Join",
        "Loader",
        "Map",
        "MegatronBlocks",
        "PackByLength",
        "PackStream",
        "Sequential",
        "Shuffle",
        "Skip",
        "Stages",
        "StreamingOrder",
        "Take",
        "Whole",
        "WithAux",
        "cache",
        "convert",
        "create",
        "diff",
        "exclude",
        "explain",
        "filter",
        "find",
        "head",
        "index",
        "info",
        "lineage",
        "merge",
        "merge_states",
        "open",
        "open_metadataset",
        "open_recipe",
        "pack",
        "plan",
        "prepare",
        "prepare_media",
        "purge",
        "register_sample_type",
        "repair",
        "report",
        "shuffle",
        "split",
        "stage",
        "status",
        "subset",
        "verify",
    },
    "penstock.check": {"repair", "summarise", "verify"},
    "penstock.cook": {
        "CookedSource",
        "CookedStream",
        "Cooker",
        "Crude",
        "CrudeSample",
        "FileStore",
        "Lazy",
        "PackStream",
        "Prefetch",
        "SkipSample",
        "cook",
    },
    "penstock.load": {"Loader", "collate_columns", "merge_states"},
    "penstock.mix": {
        "AuxSource",
        "AuxStream",
        "Balance",
        "Blend",
        "Concat",
        "ConcatSource",
        "ConcatTokens",
        "Epochs",
        "Join",
        "JoinedSource",
        "Map",
        "MappedSource",
        "MappedStream",
        "Stages",
        "StreamingOrder",
        "WithAux",
        "aux_of",
        "block_counts",
        "subset",
    },
    "penstock.order": {
        "BlockOrder",
        "GlobalOrder",
        "OrderedStream",
        "Sequential",
        "SequentialOrder",
        "Shuffle",
        "Skip",
        "Take",
    },
    "penstock.pack": {
        "BestFit",
        "Chunk",
        "FillInTheMiddle",
        "MegatronBlocks",
        "MegatronWindows",
        "PackByLength",
        "PackedWindows",
        "Whole",
        "WholeDocuments",
        "Windows",
    },
    "penstock.recipe": {"Recipe", "open_metadataset", "open_recipe", "read_recipe", "traverse_metadataset"},
    "penstock.store": {"DerivedCache", "LocalStore", "MemoryStore", "cache_folder", "resolve"},
    "penstock.testing": {
        "ClusterSuite",
        "CountingStore",
        "ExecutorSuite",
        "FaultStore",
        "FaultyOs",
        "FileServer",
        "FormatSuite",
        "KeyedSource",
        "LatencyStore",
        "MemorySource",
        "MemoryTokens",
        "OrderLaws",
        "SourceLaws",
        "StoreSuite",
        "StreamLaws",
        "TokenFormatSuite",
        "TokenSourceLaws",
        "count_operations",
        "faults_everywhere",
        "same",
    },
    "penstock.verbs": {
        "cache",
        "convert",
        "diff",
        "exclude",
        "explain",
        "filter",
        "find",
        "head",
        "index",
        "info",
        "lineage",
        "merge",
        "pack",
        "plan",
        "prepare",
        "prepare_media",
        "purge",
        "repair",
        "report",
        "shuffle",
        "split",
        "stage",
        "status",
        "verify",
        "view",
    },
}

SEAMS = {
    "penstock.abc": {
        "Executor",
        "Format",
        "Order",
        "Packing",
        "Source",
        "Staged",
        "Store",
        "Stream",
        "SupportsBlocks",
        "SupportsDocumentFlags",
        "SupportsFiles",
        "SupportsKeys",
        "SupportsMmap",
        "SupportsPlaces",
        "SupportsPrefetch",
        "SupportsRuns",
        "SupportsSubstitutes",
        "TokenSource",
        "Writer",
    },
    "penstock.errors": {
        "ConfigError",
        "CookError",
        "Corrupt",
        "Denied",
        "Excluded",
        "FormatError",
        "MissingExtra",
        "NotFound",
        "PenstockError",
        "PrepareError",
        "ResumeMismatch",
        "TooLarge",
        "Truncated",
        "Unreachable",
        "UnsafeData",
        "Unsupported",
    },
    "penstock.types": {
        "AVMetadata",
        "Action",
        "Batch",
        "Depth",
        "Extent",
        "Field",
        "Finding",
        "ImageMetadata",
        "IntArray",
        "Location",
        "Manifest",
        "MediaMetadata",
        "OpenOptions",
        "Place",
        "ReadMode",
        "Sample",
        "Schema",
        "Severity",
        "Sniff",
        "SourceInfo",
        "TokenArray",
        "Traits",
    },
    "penstock.formats": {
        "BUILT_IN",
        "ENTRY_POINT_GROUP",
        "SUFFIXES",
        "create",
        "create_dry",
        "files_at",
        "finish_planes",
        "finish_replacement",
        "find_format",
        "format_names",
        "formats_of_name",
        "get_format",
        "open",
        "open_source",
        "owned_by",
        "require_taken",
        "sniff",
        "usable_format",
    },
}
"""Modules whose every name without an underscore, made there, is public."""


@pytest.mark.parametrize("module", sorted(NAMES))
def test_all(module: str) -> None:
    found = importlib.import_module(module)
    assert set(found.__all__) == NAMES[module]
    assert list(found.__all__) == sorted(found.__all__)
    for name in found.__all__:
        assert getattr(found, name) is not None
    assert set(found.__all__) <= set(dir(found))


@pytest.mark.parametrize("module", sorted(SEAMS))
def test_seams(module: str) -> None:
    found = importlib.import_module(module)
    made_there = {
        name
        for name, value in vars(found).items()
        if not name.startswith("_")
        and f"{getattr(value, '__module__', module)}.".startswith(f"{module}.")  # a package's are made in its modules
        and not _is_module(value)
    }
    missing = {name for name in SEAMS[module] if not hasattr(found, name)}
    assert missing == set()
    assert {name for name in made_there if name not in {"T", "R", "T_co", "annotations"}} <= SEAMS[module]


def test_unknown_name_is_an_attribute_error() -> None:
    for module in ("penstock", "penstock.testing"):
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = importlib.import_module(module).no_such_name


@pytest.mark.parametrize("first", ["import penstock.convert", "import penstock as ps; ps.convert"])
def test_a_submodule_does_not_shadow_the_function(first: str) -> None:
    code = f"{first}\nimport penstock as ps, penstock.convert as again\nassert callable(ps.convert) and callable(again)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _is_module(value: object) -> bool:
    return type(value).__name__ == "module"
