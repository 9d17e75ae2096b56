"""Tests of `penstock.abc.Source` and `TokenSource`, as suites.

class TestMySource(SourceLaws):
    @pytest.fixture
    def source(self):
        return MySource(…)

    @pytest.fixture
    def expected(self):
        return [{"text": "a"}, …]      # every sample, in order; at least three
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from penstock._access import keys_of, prefetch_of, samples_of, token_extents
from penstock.abc import Source, SupportsDocumentFlags, SupportsFiles, SupportsKeys, SupportsPlaces, TokenSource
from penstock.errors import NotFound
from penstock.testing.elsewhere import in_a_fork, in_threads, pickled_copy
from penstock.testing.equality import row_matches, same, same_samples
from penstock.testing.strategies import for_all, positions
from penstock.types import IntArray, Sample

FINGERPRINT = re.compile(r"^[0-9a-f]{16,64}$")
SCREEN_LINES = 24


def check_reads(source: Source[Any], expected: Sequence[Sample], seed: int = 0) -> None:
    """Check some random samples, single and in batches."""
    rng = np.random.default_rng(seed)
    for index in rng.integers(0, len(expected), 20).tolist():
        assert same(source[index], expected[index])
    indices = rng.integers(0, len(expected), 20)
    batch = source.get_batch(indices)
    assert all(row_matches(batch, row, expected[index]) for row, index in enumerate(indices.tolist()))


def _check_place(source: SupportsPlaces, index: int) -> None:
    """Check that file ranges are inside their files, and that the key is the sample's."""
    place = source.place_of(index)
    for extent in place.extents or ():
        assert extent.offset_bytes >= 0
        assert extent.length_bytes >= 0
        if os.path.exists(extent.path):  # else in another store
            assert extent.offset_bytes + extent.length_bytes <= os.path.getsize(extent.path)
    if isinstance(source, SupportsKeys) and place.key is not None:
        assert place.key == source.key_of(index)


class SourceLaws:
    """Tests of a source: inherit the class and define the fixtures `source` and `expected`.

    `expected` are all samples of the source, at least three.

    Examples:
        >>> import pytest
        >>> from penstock.testing import MemorySource, SourceLaws
        >>> samples = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
        >>> class TestMySource(SourceLaws):
        ...     @pytest.fixture
        ...     def source(self):
        ...         return MemorySource(samples)
        ...
        ...     @pytest.fixture
        ...     def expected(self):
        ...         return samples

        pytest runs all laws. To run one:

        >>> TestMySource().test_negative_indices(MemorySource(samples), samples)
    """

    def test_every_sample(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        assert len(expected) >= 3
        assert len(source) == len(expected)
        assert same_samples([source[index] for index in range(len(source))], expected)

    def test_negative_indices(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        assert same(source[-1], expected[-1])
        assert same(source[-len(expected)], expected[0])

    def test_index_out_of_range(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        for index in (len(expected), -len(expected) - 1, 1 << 70, -(1 << 70)):
            with pytest.raises(IndexError):
                source[index]

    def test_iteration_ends(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        samples: Any = source
        assert same_samples(list(samples), expected)

    def test_any_integer_is_an_index(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        kinds: list[Any] = [np.int64, np.uint8, np.int32]
        for kind in kinds:
            assert same(source[kind(1)], expected[1])
        wrong: Any = 1.0
        with pytest.raises(TypeError):
            source[wrong]

    def test_rows_of_a_batch(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        @for_all(positions(len(expected), max_size=20))
        def law(indices: IntArray) -> None:
            batch = source.get_batch(indices)
            assert {len(column) for column in batch.values()} <= {len(indices)}
            for row, index in enumerate(indices.tolist()):
                assert row_matches(batch, row, expected[index])

    def test_batch_takes_lists_and_refuses_what_is_outside(
        self, source: Source[Any], expected: Sequence[Sample]
    ) -> None:
        assert row_matches(source.get_batch([2, 0]), 0, expected[2])
        source.get_batch([])
        for outside in ([-1], [0, len(expected)], np.array([1 << 40])):
            with pytest.raises(IndexError):
                source.get_batch(outside)

    def test_reading_is_pure(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        for value in source[1].values():
            if isinstance(value, np.ndarray) and value.flags.writeable and value.size:
                value.flat[0] += 1
        assert same(source[1], expected[1])

    def test_pickled_copy(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        fresh = pickled_copy(source)
        check_reads(fresh, expected)
        check_reads(source, expected)
        used = pickled_copy(source)
        check_reads(used, expected)
        assert used.fingerprint == source.fingerprint

    def test_threads(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        in_threads(lambda number: check_reads(source, expected, number))

    def test_fork(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        in_a_fork(lambda: check_reads(source, expected))
        check_reads(source, expected)
        in_a_fork(lambda: check_reads(source, expected, 1))

    def test_schema(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        schema = source.schema
        names = [field.name for field in schema.fields]
        assert len(set(names)) == len(names)
        for sample in expected:
            assert schema.open or sample.keys() == set(names)
            for field in schema.fields:
                value = sample.get(field.name)
                if isinstance(value, np.ndarray) and field.dtype is not None:
                    assert value.dtype.name == field.dtype

    def test_fingerprint(self, source: Source[Any]) -> None:
        assert FINGERPRINT.match(source.fingerprint)
        assert source.fingerprint == source.fingerprint

    def test_recipe_is_plain_json(self, source: Source[Any]) -> None:
        recipe = source.recipe()
        assert json.loads(json.dumps(recipe, allow_nan=False)) == recipe

    def test_children(self, source: Source[Any]) -> None:
        for name, child in source.children().items():
            assert isinstance(name, str)
            assert FINGERPRINT.match(child.fingerprint)

    def test_prints_a_screen(self, source: Source[Any]) -> None:
        lines = str(source).splitlines()
        assert 1 <= len(lines) <= SCREEN_LINES
        assert " object at 0x" not in lines[0], "add a one-line `summary()` and `__str__ = kit.tree`"

    def test_optional_powers(self, source: Source[Any], expected: Sequence[Sample]) -> None:
        count = len(expected)
        if isinstance(source, SupportsKeys):
            assert [source.index_of(source.key_of(index)) for index in range(count)] == list(range(count))
            with pytest.raises(NotFound):
                source.index_of("no such key \0")
            assert keys_of(source, 1, count) == [source.key_of(index) for index in range(1, count)]
        if isinstance(source, SupportsFiles):
            with pytest.raises(NotFound):
                source.get("no such file")
        asked = np.array([2, 0, 2])
        assert same_samples(samples_of(source, asked), [expected[2], expected[0], expected[2]])
        whole: Any = source
        if getattr(whole, "kept_before", None) is not None:
            kept = [whole.kept_before(place) for place in range(whole.split_size + 1)]
            assert (kept[0], kept[-1]) == (0, count)
            assert set(np.diff(kept).tolist()) <= {0, 1}
        if isinstance(source, SupportsPlaces):
            for index in range(count):
                _check_place(source, index)
        prefetch = prefetch_of(source)
        if prefetch is not None:
            prefetch(asked.reshape(1, 3), whole=True)
            assert same_samples(samples_of(source, asked), [expected[2], expected[0], expected[2]])
        if hasattr(type(source), "block_starts"):
            borders: Any = source
            starts = borders.block_starts
            assert starts.dtype == np.int64
            assert (starts[0], starts[-1]) == (0, count)
            assert (np.diff(starts) >= 0).all()


class TokenSourceLaws(SourceLaws):
    """Tests of a `TokenSource`, in addition to those of `SourceLaws`.

    `expected` are its documents as `{"tokens": array}`, at least three.

    Examples:
        >>> import numpy as np
        >>> import pytest
        >>> from penstock.testing import MemoryTokens, TokenSourceLaws
        >>> documents = [[5, 6, 0], [7, 0], [8, 9, 4, 0]]
        >>> samples = [{"tokens": np.array(document, np.uint8)} for document in documents]
        >>> class TestMyTokens(TokenSourceLaws):
        ...     @pytest.fixture
        ...     def source(self):
        ...         return MemoryTokens(documents, eos_id=0)
        ...
        ...     @pytest.fixture
        ...     def expected(self):
        ...         return samples

        pytest runs all laws. To run one:

        >>> TestMyTokens().test_doc_starts(MemoryTokens(documents, eos_id=0), samples)
    """

    @pytest.fixture
    def stored(self, expected: Sequence[Sample]) -> Any:
        """Return all tokens in order, uint[num_tokens]."""
        return np.concatenate([sample["tokens"] for sample in expected])

    def test_counts(self, source: TokenSource, expected: Sequence[Sample], stored: Any) -> None:
        assert source.num_tokens == len(stored)
        assert source.dtype == stored.dtype
        assert source.dtype.isnative
        assert source.dtype in (np.uint8, np.uint16, np.uint32)

    def test_doc_starts(self, source: TokenSource, expected: Sequence[Sample]) -> None:
        starts = source.doc_starts
        assert starts.dtype == np.int64
        assert starts.tolist() == np.cumsum([0, *(len(sample["tokens"]) for sample in expected)]).tolist()
        assert not starts.flags.writeable

    def test_tokens_are_slices(self, source: TokenSource, stored: Any) -> None:
        bounds = st.tuples(st.integers(0, len(stored)), st.integers(0, len(stored))).map(sorted)

        @for_all(bounds)
        def law(pair: list[int]) -> None:
            start, stop = pair
            tokens = source.tokens(start, stop)
            assert same(tokens, stored[start:stop])
            assert not tokens.flags.writeable

    def test_tokens_out_of_range(self, source: TokenSource, stored: Any) -> None:
        for start, stop in ((-1, 0), (0, len(stored) + 1), (2, 1), (len(stored) + 1, len(stored) + 1), (0, 1 << 70)):
            with pytest.raises(IndexError):
                source.tokens(start, stop)

    def test_gather_is_slices(self, source: TokenSource, stored: Any) -> None:
        for length in {1, 2, min(5, len(stored)), len(stored)}:
            asked = st.tuples(positions(len(stored) - length + 1, max_size=12), st.just(length))

            @for_all(asked, examples=8)
            def law(case: tuple[IntArray, int]) -> None:
                starts, length = case
                rows = source.gather(starts, length)
                assert rows.shape == (len(starts), length)
                assert rows.dtype == stored.dtype
                assert all(same(row, stored[at : at + length]) for row, at in zip(rows, starts.tolist(), strict=True))

    def test_gather_into_out(self, source: TokenSource, stored: Any) -> None:
        starts = np.array([1, 0, 1], dtype=np.int64)
        out = np.full((3, 2), 77, dtype=source.dtype)
        assert source.gather(starts, 2, out=out) is out
        assert same(out, np.stack([stored[1:3], stored[0:2], stored[1:3]]))

    def test_gather_is_a_copy(self, source: TokenSource, stored: Any) -> None:
        rows = source.gather(np.array([0, 0], dtype=np.int64), 2)
        rows[0] = 0
        assert same(rows[1], stored[:2])
        assert same(source.tokens(0, 2), stored[:2])

    def test_gather_out_of_range(self, source: TokenSource, stored: Any) -> None:
        for starts, length in (([-1], 1), ([0, len(stored)], 1), ([0], len(stored) + 1), ([1 << 62], 2)):
            with pytest.raises(IndexError):
                source.gather(np.array(starts, dtype=np.int64), length)

    def test_eos_ends_every_document(self, source: TokenSource, expected: Sequence[Sample]) -> None:
        if source.eos_id is not None:
            assert all(sample["tokens"][-1] == source.eos_id for sample in expected if len(sample["tokens"]))

    def test_token_extents(self, source: TokenSource, stored: Any) -> None:
        extents = token_extents(source, 1, len(stored))
        if extents:
            assert sum(extent.length_bytes for extent in extents) >= (len(stored) - 1) * source.dtype.itemsize
            for extent in extents:
                assert extent.offset_bytes + extent.length_bytes <= os.path.getsize(extent.path)

    def test_document_flags(self, source: TokenSource, expected: Sequence[Sample], stored: Any) -> None:
        if isinstance(source, SupportsDocumentFlags):
            first = np.zeros(len(stored), bool)
            first[source.doc_starts[:-1][np.diff(source.doc_starts) > 0]] = True
            starts = np.arange(len(stored) - 2, dtype=np.int64)
            flags = source.gather_starts(starts, 3)
            assert np.array_equal(flags, np.lib.stride_tricks.sliding_window_view(first, 3))
