"""Tests of token formats: those of all formats and of all token sources, and further ones.

class TestMine(TokenFormatSuite):
    format = "mine"
    suffix = ".mine"
    options = {"token_bytes": 2}
    widths = {1: {"token_bytes": 1}, 2: {"token_bytes": 2}, 4: {"token_bytes": 4}}
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis.strategies import SearchStrategy

from penstock._kinds import TokenParts, is_token_source
from penstock.abc import SupportsRuns, TokenSource
from penstock.codec.hashes import DocumentDigest
from penstock.errors import ConfigError, FormatError, PenstockError, TooLarge
from penstock.store.local import LocalStore
from penstock.testing.datasets import files_in
from penstock.testing.equality import same, same_samples
from penstock.testing.formats import FormatSuite
from penstock.testing.sources import TokenSourceLaws
from penstock.testing.strategies import token_samples
from penstock.types import OpenOptions, Sample

EOS = 7
DOCUMENTS: list[list[int]] = [[300, 2, EOS], [EOS], [65_535, 0, 1, EOS], [5, EOS]]
OTHER: list[list[int]] = [[1, 1, 2, EOS], [3, EOS]]
PICKLED_BYTES = 20_000


def as_samples(documents: list[list[int]], dtype: str = "uint16") -> list[Sample]:
    return [{"tokens": np.array(document, dtype)} for document in documents]


class TokenFormatSuite(TokenSourceLaws, FormatSuite):
    """Tests of a token format: inherit the class and define its attributes.

    Required are `format`, `suffix`, `options` (for 2-byte tokens) and `widths`.

    Attributes:
        widths: options of the writer for each token width in bytes.
        dtype: dtype of the ids read from a dataset with `options`.
        id_limits: token width → first id that doesn't fit, if that isn't 2^(8 * width).
        zero_copy: `tokens()` is a view of the mapped file.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.testing import TokenFormatSuite
        >>> class TestMyFormat(TokenFormatSuite):
        ...     format = "pbin"
        ...     suffix = ".pbin"
        ...     options = {"token_bytes": 2}
        ...     widths = {size: {"token_bytes": size} for size in (1, 2, 4)}

        pytest runs all tests. To run one:

        >>> suite = TestMyFormat()
        >>> suite.write(Path("mine.pbin"), suite.example)
        >>> suite.test_vocabulary(Path("mine.pbin"))
    """

    widths: Mapping[int, Mapping[str, Any]]
    dtype: str = "uint16"
    id_limits: Mapping[int, int] = {}
    zero_copy: bool = True
    samples: SearchStrategy[list[Sample]] = token_samples()
    example: list[Sample] = as_samples(DOCUMENTS)
    other: list[Sample] = as_samples(OTHER)

    def tokens_of(self, path: Path, **options: Any) -> TokenSource:
        """Open as a token source."""
        source = self.the_format.open(LocalStore(), str(path), OpenOptions(**options))
        assert is_token_source(source)
        return source

    def test_widths(self, fresh: Iterator[Path]) -> None:
        for token_bytes, options in self.widths.items():
            limit = self.id_limits.get(token_bytes, 1 << 8 * token_bytes)
            dtype = f"uint{8 * token_bytes}"
            documents = [[0, limit - 1], [], [1]]
            path = next(fresh)
            self.write(path, [{"tokens": document} for document in documents], options=options)
            source = self.tokens_of(path)
            assert source.dtype == dtype
            assert same_samples([source[index] for index in range(3)], as_samples(documents, dtype))
            assert source.gather(np.array([0, 1]), 2).tolist() == [[0, limit - 1], [limit - 1, 1]]

    def test_manifest(self, path: Path) -> None:
        writer = self.the_format.create(LocalStore(), str(path), {**self.options, "eos_id": EOS}, overwrite=False)
        for sample in self.example:
            writer.write(sample)
        manifest = writer.commit()
        digest = DocumentDigest()
        tokens = np.concatenate([sample["tokens"] for sample in self.example])
        digest.update(tokens, np.array([len(sample["tokens"]) for sample in self.example]))
        assert manifest.num_tokens == len(tokens)
        assert manifest.max_token_id == tokens.max()
        assert manifest.eos_id == EOS
        assert manifest.digest == digest.hexdigest()
        assert self.tokens_of(path).eos_id == EOS

    def test_eos_may_be_given(self, dataset: Path) -> None:
        assert self.tokens_of(dataset).eos_id is None
        assert self.tokens_of(dataset, eos_id=EOS).eos_id == EOS

    def test_vocabulary(self, dataset: Path) -> None:
        assert self.tokens_of(dataset, vocab_size=65_536).num_tokens
        with pytest.raises(TooLarge):
            self.tokens_of(dataset, vocab_size=65_535)

    def test_id_that_does_not_fit(self, fresh: Iterator[Path]) -> None:
        for token_bytes, options in self.widths.items():
            for wrong in (-1, self.id_limits.get(token_bytes, 1 << 8 * token_bytes)):
                path = next(fresh)
                documents = [{"tokens": np.array([1, 2], np.uint8)}, {"tokens": np.array([3, wrong], np.int64)}]
                with pytest.raises(PenstockError):
                    self.write(path, documents, options=options)
                assert not path.parent.exists() or files_in(path.parent) == {}

    def test_samples_are_tokens_only(self, path: Path) -> None:
        writer = self.the_format.create(LocalStore(), str(path), self.options, overwrite=False)
        wrong: list[Sample] = [
            {"text": "a"},
            {},
            {"tokens": [1], "text": "a"},
            {"tokens": [[1]]},
            {"tokens": np.array([1.5])},
            {"tokens": "12"},
        ]
        for sample in wrong:
            with pytest.raises((ConfigError, FormatError, TypeError)):
                writer.write(sample)
        writer.write({"tokens": [1, 2]})
        writer.commit()
        assert same_samples([self.open(path)[0]], as_samples([[1, 2]], self.dtype))

    def test_tokens_are_a_view_of_the_file(self, dataset: Path) -> None:
        source = self.tokens_of(dataset, read="mmap")
        whole, part = source.tokens(0, source.num_tokens), source.tokens(1, 3)
        assert np.shares_memory(whole, part) == self.zero_copy
        assert same(whole[1:3], part)

    def test_pickle_holds_no_data(self, path: Path) -> None:
        self.write(path, [{"tokens": np.arange(1000, dtype=np.uint16)}] * 200)
        source = self.tokens_of(path)
        assert len(source) == 200
        assert source.doc_starts[-1] == source.num_tokens
        assert len(source.fingerprint)
        assert len(pickle.dumps(source)) < PICKLED_BYTES

    def test_runs_of_documents(self, fresh: Iterator[Path]) -> None:
        plain, path = next(fresh), next(fresh)
        self.write(plain, self.example)
        writer = self.the_format.create(LocalStore(), str(path), self.options, overwrite=False)
        if isinstance(writer, SupportsRuns):
            lengths = np.array([len(sample["tokens"]) for sample in self.example], np.int64)
            tokens = np.concatenate([sample["tokens"] for sample in self.example]).astype(np.uint32)
            for wrong in (lengths + 1, lengths[:-1], np.append(lengths, -1)):
                with pytest.raises(PenstockError):
                    writer.write_run(tokens, wrong)
            writer.write_run(tokens, lengths)
            writer.write_run(tokens[:0], lengths[:0])
            writer.commit()
            assert files_in(path.parent) == files_in(plain.parent)
        else:
            writer.abort()

    def test_parts_from_files(self, fresh: Iterator[Path], tmp_path: Path) -> None:
        plain, path, wrong = next(fresh), next(fresh), next(fresh)
        self.write(plain, self.example)
        part = tmp_path / "part"
        writer = self.the_format.create(LocalStore(), str(path), self.options, overwrite=False)
        failing = self.the_format.create(LocalStore(), str(wrong), self.options, overwrite=False)
        if isinstance(writer, TokenParts) and isinstance(failing, TokenParts):
            for number, sample in enumerate(self.example):
                part.write_bytes(b"skipped" + sample["tokens"].astype("<u2").tobytes() + b"after")
                lengths = np.array([len(sample["tokens"])], np.int64)
                largest = None if number % 2 else int(sample["tokens"].max())  # None: the writer computes it
                writer.write_part(str(part), 7, lengths, largest)
            writer.commit()
            assert files_in(path.parent) == files_in(plain.parent)
            with pytest.raises(PenstockError):
                failing.write_part(str(part), 7, np.array([100], np.int64), 5)
        writer.abort()
        failing.abort()
        assert not wrong.parent.exists() or files_in(wrong.parent) == {}
