"""The suites notice what is broken: each law fails on something that breaks it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.internals import MemoryStaged, system_calls

from penstock import Shuffle
from penstock.errors import ConfigError
from penstock.formats import get_format
from penstock.order import GlobalOrder, OrderedStream
from penstock.store import LocalStore, MemoryStore
from penstock.testing.memory import KeyedSource, MemorySource, MemoryTokens
from penstock.testing.orders import OrderLaws
from penstock.testing.sources import SourceLaws, TokenSourceLaws
from penstock.testing.stores import StoreSuite
from penstock.testing.streams import StreamLaws
from penstock.testing.tokens import TokenFormatSuite
from penstock.types import Place, Sniff

SAMPLES = [{"n": number} for number in range(10)]


def noticed(law: Callable[..., object], *arguments: Any) -> bool:
    """Whether the law fails, with an assertion or with an error of the broken thing itself."""
    try:
        law(*arguments)
    except (AssertionError, pytest.fail.Exception, ConfigError, IndexError, OSError):
        return True
    return False


# --- sources ---------------------------------------------------------------------------------------------------------


class Sorting(MemorySource):
    def get_batch(self, indices):
        return super().get_batch(np.sort(indices))


class Wrapping(MemorySource):
    def __getitem__(self, index):
        return SAMPLES[index % len(SAMPLES)]


class Counting(MemorySource):
    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return {"n": super().__getitem__(index)["n"] + self.reads // 12}


class Restless(MemorySource):
    fingerprint = property(lambda self: f"{next(COUNTER):032x}")


class Shifting(MemoryTokens):
    def gather(self, starts, length, out=None):
        return super().gather(np.maximum(starts, 1), length, out)


class Elsewhere(KeyedSource):
    """Says a place with another sample's key."""

    def place_of(self, index):
        return Place(key=self.key_of((index + 1) % len(self)))


class Forgetful(KeyedSource):
    """Hints change what is read."""

    def prefetch(self, batches, *, whole=False):
        self._samples = self._samples[::-1]


class Everything(KeyedSource):
    """Has a file of any name."""

    def get(self, name):
        return name.encode()

    def get_media_metadata(self, name):
        return None


COUNTER = itertools.count()


def test_sources() -> None:
    laws = SourceLaws()
    assert not noticed(laws.test_rows_of_a_batch, MemorySource(SAMPLES), SAMPLES)
    assert noticed(laws.test_rows_of_a_batch, Sorting(SAMPLES), SAMPLES)
    assert noticed(laws.test_index_out_of_range, Wrapping(SAMPLES), SAMPLES)
    assert noticed(laws.test_fork, Counting(SAMPLES), SAMPLES)
    assert noticed(laws.test_every_sample, MemorySource(SAMPLES[:9]), SAMPLES)
    assert noticed(laws.test_fingerprint, Restless(SAMPLES))
    assert not noticed(laws.test_optional_powers, KeyedSource(SAMPLES, "n"), SAMPLES)
    for wrong in (Elsewhere, Forgetful, Everything):
        assert noticed(laws.test_optional_powers, wrong(SAMPLES, "n"), SAMPLES)
    tokens = np.array([5, 6, 7, 8], np.uint8)
    assert not noticed(TokenSourceLaws().test_gather_is_slices, MemoryTokens([tokens]), tokens)
    assert noticed(TokenSourceLaws().test_gather_is_slices, Shifting([tokens]), tokens)


# --- orders and streams ----------------------------------------------------------------------------------------------


class Adding(GlobalOrder):
    """Adds seed and epoch."""

    def _key(self, epoch):
        return self.seed + epoch


class Twice(GlobalOrder):
    """Gives index 0 twice."""

    def order(self, positions):
        return np.maximum(super().order(positions) - 1, 0)


class TwoWays(GlobalOrder):
    """One position at a time it gives something else."""

    def order_one(self, position):
        return (super().order_one(position) + 1) % self.size


class OrdersOf(OrderLaws):
    version = "feistel-1"
    golden: ClassVar = {(10, 0, 0): [6, 5, 2]}

    def __init__(self, kind: type[GlobalOrder]) -> None:
        self.kind = kind

    def make(self, n: int, seed: int) -> GlobalOrder:
        return self.kind(n, seed)


def test_orders() -> None:
    good = OrdersOf(GlobalOrder)
    for law in (good.test_seeds_and_epochs, good.test_every_epoch_is_a_bijection, good.test_one_equals_many):
        assert not noticed(law)
    assert noticed(OrdersOf(Adding).test_seeds_and_epochs)
    assert noticed(OrdersOf(Twice).test_every_epoch_is_a_bijection)
    assert noticed(OrdersOf(Twice).test_golden)
    assert noticed(OrdersOf(TwoWays).test_one_equals_many)
    assert noticed(OrdersOf(TwoWays).test_huge)


class BadBatches(OrderedStream):
    def get_batch(self, positions):
        return super().get_batch(np.asarray(positions, dtype=np.int64) + 1)


class BadPlaces(OrderedStream):
    def locate(self, position):
        return super().locate(position + 1)


class StreamsOf(StreamLaws):
    def __init__(self, kind: type[OrderedStream]) -> None:
        self.kind = kind

    def make(self) -> OrderedStream:
        stream = Shuffle(MemorySource(SAMPLES), seed=3)
        stream.__class__ = self.kind
        return stream


def test_streams() -> None:
    for law in (StreamsOf(OrderedStream).test_rows_of_a_batch, StreamsOf(OrderedStream).test_locate):
        assert not noticed(law)
    assert noticed(StreamsOf(BadBatches).test_rows_of_a_batch)
    assert noticed(StreamsOf(BadPlaces).test_locate)


# --- stores ----------------------------------------------------------------------------------------------------------


class EagerStore(MemoryStore):
    """A staged file is visible at once."""

    def stage(self, path, *, overwrite=False):
        self.files[path] = b""
        return super().stage(path, overwrite=True)


class RudeStore(MemoryStore):
    """A commit overwrites what appeared meanwhile."""

    def stage(self, path, *, overwrite=False):
        return MemoryStaged(self.files, path, overwrite=True)


class HastyStore(MemoryStore):
    """Ranges past the end are cut in silence."""

    def get_ranges(self, path, ranges):
        return [self.get(path, start, stop - start) for start, stop in ranges]


def test_stores() -> None:
    laws = StoreSuite()
    for law in (laws.test_staged_is_invisible_until_commit, laws.test_existing_file_is_refused):
        assert not noticed(law, MemoryStore(), "root")
    assert noticed(laws.test_staged_is_invisible_until_commit, EagerStore(), "root")
    assert noticed(laws.test_existing_file_is_refused, RudeStore(), "root")
    assert noticed(laws.test_file_that_appears_meanwhile_is_kept, RudeStore(), "root")
    assert noticed(laws.test_get_ranges_past_the_end_is_truncated, HastyStore(), "root")


# --- formats ---------------------------------------------------------------------------------------------------------


class Wrapped:
    """The format pbin, but for what a subclass changes."""

    def __getattr__(self, name):
        return getattr(get_format("pbin"), name)


class CommitsAlways(Wrapped):
    def create(self, store, path, options, *, overwrite):
        writer = get_format("pbin").create(store, path, options, overwrite=overwrite)

        class Writer(type(writer)):
            def __exit__(self, kind, error, trace):
                self.commit()

        writer.__class__ = Writer
        return writer


class WritesInPlace(Wrapped):
    """Copies the finished file to its place piece by piece, without a stage."""

    def create(self, store, path, options, *, overwrite):
        writer = get_format("pbin").create(LocalStore(), path + ".made", options, overwrite=True)

        class Writer(type(writer)):
            def commit(self):
                manifest = super().commit()
                data = Path(path + ".made").read_bytes()
                fd = system_calls(store).open(path, 0o101)
                for piece in (data[:20], data[20:]):
                    system_calls(store).write(fd, piece)
                system_calls(store).close(fd)
                return manifest

        writer.__class__ = Writer
        return writer


class KnowsEverything(Wrapped):
    def sniff(self, store, path):
        return Sniff(True, "it looks fine")


class CommitsTwice(Wrapped):
    """Commits at the end of the block whatever was done in it."""

    def create(self, store, path, options, *, overwrite):
        writer = get_format("pbin").create(store, path, options, overwrite=overwrite)

        class Writer(type(writer)):
            def __exit__(self, *_):
                self.commit()

        writer.__class__ = Writer
        return writer


class NoRecipe(MemorySource):
    """Says what it was, not how it is opened again."""

    __str__ = object.__repr__


class FindsNothing(Wrapped):
    def check(self, store, path, options, depth):
        return []


class FormatsOf(TokenFormatSuite):
    format = "pbin"
    suffix = ".pbin"
    options: ClassVar = {"token_bytes": 2}

    def __init__(self, kind: type[Wrapped]) -> None:
        self.kind = kind

    @property
    def the_format(self) -> Any:
        return self.kind()


def test_formats(tmp_path: Path) -> None:
    folders = (tmp_path / str(number) for number in itertools.count())
    fresh = (folder / "set.pbin" for folder in folders)

    def dataset() -> Path:
        path = next(fresh)
        FormatsOf(Wrapped).write(path, FormatsOf.example)
        return path

    for kind, expected in ((Wrapped, False), (CommitsAlways, True)):
        assert noticed(FormatsOf(kind).test_exception_leaves_nothing, next(fresh)) == expected
    for kind, expected in ((Wrapped, False), (CommitsTwice, True)):
        assert noticed(FormatsOf(kind).test_the_end_of_the_block_ends_what_is_open, fresh) == expected
    opened = FormatsOf(Wrapped).open(dataset())
    for source, expected in ((opened, False), (NoRecipe(SAMPLES), True)):
        assert noticed(FormatsOf(Wrapped).test_the_recipe_opens_it_again, source) == expected
        assert noticed(SourceLaws().test_prints_a_screen, source) == expected
    for kind, expected in ((Wrapped, False), (WritesInPlace, True)):
        assert noticed(FormatsOf(kind).test_fault_at_every_operation, fresh, "raise", False) == expected
    for kind, expected in ((Wrapped, False), (KnowsEverything, True)):
        assert noticed(FormatsOf(kind).test_sniff, dataset(), fresh) == expected
    for kind, expected in ((Wrapped, False), (FindsNothing, True)):
        assert noticed(FormatsOf(kind).test_changed_bits_are_found, dataset()) == expected
