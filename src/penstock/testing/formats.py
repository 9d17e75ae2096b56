"""Tests of `penstock.abc.Format` and `Writer`, as a suite that the tests of each format inherit.

    class TestMine(FormatSuite):
        format = "mine"
        suffix = ".mine"
        samples = json_samples()
        example = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
        other = [{"text": "d"}]

Optional features of a format are attributes of the class.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis.strategies import SearchStrategy

from penstock._arrays import stack
from penstock.abc import Format, Source, Store
from penstock.errors import ConfigError, NotFound, PenstockError, PrepareError
from penstock.formats import get_format, sniff
from penstock.recipe import open_recipe
from penstock.store.local import LocalStore
from penstock.testing.counting import CountingStore
from penstock.testing.datasets import (
    SIDE_SUFFIX,
    check_old_new_or_nothing,
    copy_of,
    data_files,
    files_in,
    flip,
    read_all,
    refusal,
    some_offsets,
    staged_in,
)
from penstock.testing.equality import row_matches, same_samples
from penstock.testing.faults import FaultMode, FaultStore, places_of
from penstock.testing.sources import SourceLaws
from penstock.testing.strategies import for_all
from penstock.types import Depth, Finding, OpenOptions, ReadMode, Sample

SNIFF_BYTES = 1 << 16
DEPTHS: tuple[Depth, ...] = ("quick", "sample", "full")
GARBAGE = (
    b"",
    b"\0",
    b"\0" * 5000,
    b"\xff" * 5000,
    b"just some text, no data\n",
    b"PK\x03\x04" + bytes(range(256)) * 20,
    b"\x80\x04]\x94.",
    np.random.default_rng(1).bytes(70_000),
)


class Failed(Exception):
    """Error that a test raises inside a `with` block."""


class FormatSuite(SourceLaws):
    """Tests of a format: inherit the class and define its attributes.

    Attributes:
        format: name of the format in the registry.
        suffix: suffix of its datasets' paths.
        samples: strategy for lists of samples that the format can store.
        example: at least three samples, used by most tests.
        other: different samples, for the dataset that is overwritten.
        options: options of the writer, and `open_options` those of opening.
        findings: prefix of the codes of findings, if it isn't the format's name.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.testing import FormatSuite
        >>> from penstock.testing.strategies import json_samples
        >>> class TestMyFormat(FormatSuite):
        ...     format = "jsonl"
        ...     suffix = ".jsonl"
        ...     samples = json_samples()
        ...     example = [{"text": text} for text in ("a", "b", "c")]
        ...     other = [{"text": "old"}]

        pytest runs all tests. To run one:

        >>> suite = TestMyFormat()
        >>> suite.write(Path("mine.jsonl"), suite.example)
        >>> suite.test_every_way_to_read_gives_the_same(Path("mine.jsonl"))
    """

    format: str
    suffix: str = ""
    samples: SearchStrategy[list[Sample]]
    example: list[Sample]
    other: list[Sample]
    options: Mapping[str, Any] = {}
    open_options: OpenOptions = OpenOptions()
    findings: str = ""

    # --- hooks ---------------------------------------------------------------------------------------------------

    def write(
        self,
        path: Path,
        samples: Sequence[Sample],
        *,
        overwrite: bool = False,
        store: Store | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Make a dataset with the format's writer."""
        chosen = self.options if options is None else options
        with self.the_format.create(store or LocalStore(), str(path), chosen, overwrite=overwrite) as writer:
            for sample in samples:
                writer.write(sample)

    def open(self, path: Path, *, store: Store | None = None) -> Source[Sample]:
        """Open a dataset."""
        return self.the_format.open(LocalStore() if store is None else store, str(path), self.open_options)

    def check(self, path: Path, depth: Depth = "full") -> list[Finding]:
        """Return the findings of the format's check."""
        return list(self.the_format.check(LocalStore(), str(path), self.open_options, depth))

    @property
    def the_format(self) -> Format:
        """The format, from the registry."""
        return get_format(self.format)

    # --- fixtures ------------------------------------------------------------------------------------------------

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """Return the path of the dataset of a test, in a separate directory that doesn't exist yet."""
        return tmp_path / "data" / f"set{self.suffix}"

    @pytest.fixture
    def dataset(self, path: Path) -> Path:
        """Return the path of a dataset that contains `example`."""
        self.write(path, self.example)
        return path

    @pytest.fixture
    def source(self, dataset: Path) -> Source[Sample]:
        """Return that dataset, opened."""
        return self.open(dataset)

    @pytest.fixture
    def expected(self) -> list[Sample]:
        """Return the samples of the dataset."""
        return self.example

    @pytest.fixture
    def fresh(self, tmp_path: Path) -> Iterator[Path]:
        """Return paths for further datasets, each in a separate directory."""
        return (tmp_path / f"fresh-{number}" / f"set{self.suffix}" for number in itertools.count())

    # --- reading back ---

    def test_round_trip(self, fresh: Iterator[Path]) -> None:
        @for_all(self.samples)
        def law(samples: list[Sample]) -> None:
            path = next(fresh)
            self.write(path, samples)
            source = self.open(path)
            assert same_samples([source[index] for index in range(len(source))], samples)
            batch = source.get_batch(np.arange(len(samples)))
            assert all(row_matches(batch, row, sample) for row, sample in enumerate(samples))
            assert [finding for finding in self.check(path) if finding.severity == "error"] == []

    def test_every_way_to_read_gives_the_same(self, dataset: Path) -> None:
        ways: tuple[ReadMode, ...] = ("auto", "mmap", "pread")
        for read in ways:
            source = self.the_format.open(LocalStore(), str(dataset), OpenOptions(read=read))
            assert same_samples([source[index] for index in range(len(source))], self.example)
            batch = source.get_batch([2, 0, 2])
            assert row_matches(batch, 1, self.example[0])

    def test_open_without_maps(self, dataset: Path) -> None:
        source = self.open(dataset, store=CountingStore(LocalStore()))
        assert same_samples([source[index] for index in range(len(source))], self.example)

    def test_the_recipe_opens_it_again(self, source: Source[Sample]) -> None:
        recipe = source.recipe()
        assert recipe.get("kind") == "open", "a dataset recipe must be created with `kit.recipe_of`"
        again = open_recipe(recipe)
        assert again.fingerprint == source.fingerprint
        assert again.recipe() == recipe

    def test_nothing_there(self, path: Path) -> None:
        with pytest.raises(NotFound):
            self.open(path)
        assert not path.parent.exists()

    def test_garbage_is_refused_or_found(self, fresh: Iterator[Path]) -> None:
        for garbage in GARBAGE:
            path = next(fresh)
            path.parent.mkdir()
            path.write_bytes(garbage)
            error = refusal(lambda path=path: [*self.open(path)])
            assert error is not None or any(finding.severity == "error" for finding in self.check(path))
            assert error is None or error.path is not None

    # --- writing -------------------------------------------------------------------------------------------------

    def test_bytes_depend_on_samples_alone(self, fresh: Iterator[Path]) -> None:
        first, second, batches = next(fresh), next(fresh), next(fresh)
        self.write(first, self.example)
        self.write(second, self.example)
        with self.the_format.create(LocalStore(), str(batches), self.options, overwrite=False) as writer:
            writer.write_batch(stack(self.example[:2]))
            writer.write_batch(stack(self.example[2:]))
        assert files_in(first.parent) == files_in(second.parent)
        assert files_in(first.parent) == files_in(batches.parent)

    def test_nothing_is_visible_before_commit(self, path: Path) -> None:
        writer = self.the_format.create(LocalStore(), str(path), self.options, overwrite=False)
        for sample in self.example:
            writer.write(sample)
        assert not path.exists()
        with pytest.raises(NotFound):
            self.open(path)
        manifest = writer.commit()
        assert manifest.format == self.format
        assert manifest.num_samples == len(self.example)
        assert same_samples(read_all(lambda: self.open(path)) or [], self.example)
        assert staged_in(path.parent) == []

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_relative_path_is_where_the_writer_began(
        self, fresh: Iterator[Path], monkeypatch: pytest.MonkeyPatch, overwrite: bool
    ) -> None:
        here, elsewhere = next(fresh), next(fresh)
        elsewhere.parent.mkdir()
        here.parent.mkdir()
        if overwrite:
            self.write(here, self.other)
        monkeypatch.chdir(here.parent)
        with self.the_format.create(LocalStore(), here.name, self.options, overwrite=overwrite) as writer:
            writer.write(self.example[0])
            monkeypatch.chdir(elsewhere.parent)
            for sample in self.example[1:]:
                writer.write(sample)
        assert files_in(elsewhere.parent) == {}
        assert staged_in(here.parent) == []
        assert same_samples(read_all(lambda: self.open(here)) or [], self.example)

    def test_exception_leaves_nothing(self, path: Path) -> None:
        path.parent.mkdir()
        with pytest.raises(Failed):
            self._fail_while_writing(path, overwrite=False)
        assert list(path.parent.iterdir()) == []
        self.write(path, self.example)

    def test_a_closed_writer_takes_nothing(self, fresh: Iterator[Path]) -> None:
        for end in ("commit", "abort"):
            path = next(fresh)
            writer = self.the_format.create(LocalStore(), str(path), self.options, overwrite=False)
            writer.write(self.example[0])
            getattr(writer, end)()
            before = files_in(path.parent)
            for call, arguments in (
                (writer.write, [self.example[1]]),
                (writer.write_batch, [stack(self.example)]),
                (writer.commit, []),
            ):
                with pytest.raises(PenstockError):
                    call(*arguments)
            writer.abort()
            assert files_in(path.parent) == before
            assert bool(before) == (end == "commit")

    def test_the_end_of_the_block_ends_what_is_open(self, fresh: Iterator[Path]) -> None:
        for end in ("commit", "abort"):
            path = next(fresh)
            with self.the_format.create(LocalStore(), str(path), self.options, overwrite=False) as writer:
                for sample in self.example:
                    writer.write(sample)
                getattr(writer, end)()
                before = files_in(path.parent)
            assert files_in(path.parent) == before, f"the end of the block after `{end}()` does nothing"

    def test_existing_output_is_refused(self, dataset: Path) -> None:
        before = files_in(dataset.parent)
        with pytest.raises(ConfigError) as caught:
            self.write(dataset, self.other)
        standing = caught.value.found or caught.value.path  # found is that of the existing file
        assert str(standing) in map(str, dataset.parent.iterdir())
        assert files_in(dataset.parent) == before

    def test_overwrite(self, dataset: Path, fresh: Iterator[Path]) -> None:
        before = files_in(dataset.parent)
        with pytest.raises(Failed):
            self._fail_while_writing(dataset, overwrite=True)
        assert files_in(dataset.parent) == before
        self.write(dataset, self.other, overwrite=True)
        plain = next(fresh)
        self.write(plain, self.other)
        assert files_in(dataset.parent) == files_in(plain.parent)

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_second_writer_of_one_output_is_refused_at_once(self, path: Path, overwrite: bool) -> None:
        if overwrite:
            self.write(path, self.other)
        first = self.the_format.create(LocalStore(), str(path), self.options, overwrite=overwrite)
        for _ in range(2):
            with pytest.raises(PrepareError):
                self.the_format.create(LocalStore(), str(path), self.options, overwrite=overwrite)
        for sample in self.example:
            first.write(sample)
        first.commit()
        assert same_samples(read_all(lambda: self.open(path)) or [], self.example)
        before = files_in(path.parent)
        with pytest.raises(ConfigError):
            self.the_format.create(LocalStore(), str(path), self.options, overwrite=False)
        self.the_format.create(LocalStore(), str(path), self.options, overwrite=True).abort()
        assert files_in(path.parent) == before
        assert staged_in(path.parent) == []

    def test_unknown_option_is_refused(self, path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            self.the_format.create(LocalStore(), str(path), {**self.options, "no_such": 1}, overwrite=False)
        assert "no_such" in str(caught.value)
        assert not path.parent.exists() or files_in(path.parent) == {}

    @pytest.mark.parametrize("overwrite", [False, True])
    @pytest.mark.parametrize("mode", ["raise", "tear", "enospc"])
    def test_fault_at_every_operation(self, fresh: Iterator[Path], mode: FaultMode, overwrite: bool) -> None:
        plain = next(fresh)
        self.write(plain, self.example)
        old = self.other if overwrite else None

        def start() -> Path:
            path = next(fresh)
            if overwrite:
                self.write(path, self.other)
            return path

        counted, counting = start(), FaultStore()
        self.write(counted, self.example, store=counting, overwrite=overwrite)
        total = counting.operations
        assert total >= 5
        for n in places_of(mode, counting.faults.calls):
            path = start()
            error = None
            try:
                self.write(path, self.example, store=FaultStore(n, mode), overwrite=overwrite)
            except (OSError, PenstockError) as caught:
                error = caught
            found = read_all(lambda path=path: self.open(path))
            check_old_new_or_nothing(found, old, self.example, f"{mode} at {n} of {total}")
            assert error is not None or (found is not None and same_samples(found, self.example))
            if path.parent.exists():
                assert staged_in(path.parent) == [], f"{mode} at {n} of {total}"
            self.write(path, self.example, overwrite=found is not None)
            assert files_in(path.parent) == files_in(plain.parent), f"{mode} at {n} of {total}, then written again"

    def test_short_writes(self, fresh: Iterator[Path]) -> None:
        plain, counting = next(fresh), FaultStore()
        self.write(plain, self.example)
        self.write(next(fresh), self.example, store=counting)
        for n in places_of("short", counting.faults.calls):
            path = next(fresh)
            self.write(path, self.example, store=FaultStore(n, "short"))
            assert files_in(path.parent) == files_in(plain.parent)

    # --- side file and fingerprint -------------------------------------------------------------------------------

    def test_side_file_is_never_needed(self, dataset: Path) -> None:
        sides = [name for name in files_in(dataset.parent) if name.endswith(SIDE_SUFFIX)]
        assert len(sides) == 1
        for damage in (b"", b"{}", b"[1, 2", b"\xff" * 100):
            (dataset.parent / sides[0]).write_bytes(damage)
            assert same_samples(read_all(lambda: self.open(dataset)) or [], self.example)
        (dataset.parent / sides[0]).unlink()
        assert same_samples(read_all(lambda: self.open(dataset)) or [], self.example)

    @pytest.mark.parametrize("with_side_file", [True, False])
    def test_fingerprint_is_of_the_content(self, dataset: Path, tmp_path: Path, with_side_file: bool) -> None:
        if not with_side_file:
            for name in files_in(dataset.parent):
                if name.endswith(SIDE_SUFFIX):
                    (dataset.parent / name).unlink()
        fingerprint = self.open(dataset).fingerprint
        copied = copy_of(dataset.parent, tmp_path / "elsewhere" / "deep") / dataset.name
        assert self.open(copied).fingerprint == fingerprint
        for file in data_files(copied.parent):
            whole = file.read_bytes()
            for offset_bytes in some_offsets(len(whole), 8):
                flip(file, offset_bytes)
                found: list[str] = []
                error = refusal(lambda found=found: found.append(self.open(copied).fingerprint))
                assert error is not None or found != [fingerprint], f"{file.name} at {offset_bytes}"
                file.write_bytes(whole)
        assert self.open(copied).fingerprint == fingerprint

    def test_fingerprint_tells_samples_apart(self, dataset: Path, fresh: Iterator[Path]) -> None:
        path = next(fresh)
        self.write(path, self.other)
        assert self.open(path).fingerprint != self.open(dataset).fingerprint

    # --- sniff, check, repair ------------------------------------------------------------------------------------

    def test_sniff(self, dataset: Path, fresh: Iterator[Path]) -> None:
        store = CountingStore(LocalStore())
        sniffed = self.the_format.sniff(store, str(dataset))
        assert sniffed.matches
        assert sniffed.why
        assert sniff(LocalStore(), str(dataset)).name == self.format
        for garbage in GARBAGE:
            path = next(fresh).with_name("named-as-nothing")
            path.parent.mkdir()
            path.write_bytes(garbage)
            sniffed = self.the_format.sniff(store, str(path))
            assert not sniffed.matches, garbage[:20]
            assert sniffed.why
        folder = next(fresh)
        folder.mkdir(parents=True)
        assert not self.the_format.sniff(store, str(folder)).matches
        assert not self.the_format.sniff(store, str(folder / "missing")).matches

    def test_sniff_reads_little(self, fresh: Iterator[Path]) -> None:
        for count in (10_000, 50_000, 200_000):  # small or compressed data needs many
            path = next(fresh)
            self.write(path, (self.example * (count // len(self.example) + 1))[:count])
            if sum(map(os.path.getsize, data_files(path.parent))) > 2 * SNIFF_BYTES:
                break
        else:
            raise AssertionError("200,000 samples are too few")
        store = CountingStore(LocalStore())
        assert self.the_format.sniff(store, str(path)).matches
        assert store.read_bytes <= SNIFF_BYTES

    @pytest.mark.parametrize("depth", DEPTHS)
    def test_check_of_our_own_is_clean_and_writes_nothing(self, dataset: Path, depth: Depth) -> None:
        before = files_in(dataset.parent)
        assert self.check(dataset, depth) == []
        assert self.the_format.repair(LocalStore(), str(dataset), self.open_options, [], write=True) == []
        assert files_in(dataset.parent) == before

    def test_truncation_is_refused_or_found(self, dataset: Path) -> None:
        for file in data_files(dataset.parent):
            whole = file.read_bytes()
            for size_bytes in some_offsets(len(whole), 24):
                file.write_bytes(whole[:size_bytes])
                self._is_refused_or_found(dataset, f"{file.name} cut to {size_bytes} of {len(whole)}")
            file.write_bytes(whole)
        assert self.check(dataset) == []

    def test_bytes_after_the_end_are_refused_or_found(self, dataset: Path) -> None:
        for file in data_files(dataset.parent):
            whole = file.read_bytes()
            for more in (b"\0", b"\x80", b"more" * 2000):
                file.write_bytes(whole + more)
                self._is_refused_or_found(dataset, f"{file.name} and {len(more)} bytes")
            file.write_bytes(whole)

    def test_changed_bits_are_found(self, dataset: Path) -> None:
        for file in data_files(dataset.parent):
            whole = file.read_bytes()
            for offset_bytes in some_offsets(len(whole), 24):
                file.write_bytes(whole)
                flip(file, offset_bytes)
                self._is_refused_or_found(dataset, f"{file.name} at {offset_bytes}", also_warned=True)
            file.write_bytes(whole)

    def test_missing_file(self, dataset: Path) -> None:
        for depth in DEPTHS:
            missing = dataset.parent / f"missing{self.suffix}"
            error = refusal(lambda depth=depth, missing=missing: self.check(missing, depth))
            assert error is None or isinstance(error, NotFound)
            assert error is not None or any(finding.severity == "error" for finding in self.check(missing, depth))

    def _fail_while_writing(self, path: Path, *, overwrite: bool) -> None:
        with self.the_format.create(LocalStore(), str(path), self.options, overwrite=overwrite) as writer:
            writer.write(self.other[0])
            raise Failed

    def _is_refused_or_found(self, path: Path, what: str, *, also_warned: bool = False) -> None:
        """Check that a damaged dataset never gives wrong data silently, and that findings have all fields."""
        read: list[list[Sample] | None] = []
        error = refusal(lambda: read.append(read_all(lambda: self.open(path))))
        for depth in DEPTHS:
            self.check(path, depth)
        findings = self.check(path, "full")
        for finding in findings:
            assert finding.code.startswith(f"{self.findings or self.format}.")
            assert finding.path
        found = [finding for finding in findings if also_warned or finding.severity == "error"]
        unharmed = read and read[0] is not None and same_samples(read[0], self.example)
        assert error is not None or found or unharmed, f"{what}: silently wrong data; findings: {findings}"
