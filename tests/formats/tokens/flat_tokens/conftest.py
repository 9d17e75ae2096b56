"""Groups for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import FLAT_TOKENS_FORMAT as FORMAT
from tests.internals import FlatTokensSource

from penstock.store import LocalStore
from penstock.types import Depth, Finding, OpenOptions

DOCUMENTS = [[1, 2], [], [3, 4, 5], [6, 7, 8], [], [9]]


@pytest.fixture(scope="session")
def groups(golden: Path) -> Path:
    """The golden folder of this format."""
    return golden / "flat-tokens"


@pytest.fixture(scope="session")
def expected(groups: Path) -> dict[str, Any]:
    """What the golden groups hold."""
    return json.loads((groups / "expected.json").read_text())


def make(path: Path, documents: Sequence[Sequence[int]] = DOCUMENTS, **options: Any) -> Path:
    """A group of ours, in chunks of 4 tokens unless said otherwise."""
    overwrite = options.pop("overwrite", False)
    chosen: Mapping[str, Any] = {"chunk_tokens": 4, "chunk_starts": 4} | options
    with FORMAT.create(LocalStore(), str(path), chosen, overwrite=overwrite) as writer:
        for document in documents:
            writer.write({"tokens": np.array(document, np.uint32)})
    return path


def opened(path: Path, **options: Any) -> FlatTokensSource:
    """A group, opened."""
    return FORMAT.open(LocalStore(), str(path), OpenOptions(**options))


def checked(path: Path, depth: Depth = "full", **options: Any) -> list[Finding]:
    """Findings."""
    return FORMAT.check(LocalStore(), str(path), OpenOptions(**options), depth)


def codes(path: Path, depth: Depth = "full") -> list[str]:
    """Codes of the findings, without the format's name."""
    return [finding.code.removeprefix("flat-tokens.") for finding in checked(path, depth)]


def documents_of(source: FlatTokensSource) -> list[list[int]]:
    """All documents as lists."""
    return [source[index]["tokens"].tolist() for index in range(len(source))]
