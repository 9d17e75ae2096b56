"""Tests of executors and stores: work on a small corpus gives the same results with all of them.

class TestMyCluster(ClusterSuite):
    @pytest.fixture(scope="module")
    @classmethod
    def executor(cls):
        with make_executor("mine", 2) as made:
            yield made

    def disturb(self):
        kill_a_node()  # at each third of a case's tasks

Define the fixture `bucket`, the URL of an empty directory in an object store, for inputs from there too.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock._optional import require
from penstock.abc import Executor
from penstock.executors import make_executor
from penstock.store.place import resolve

_DOCUMENTS = 1200
_TASK_BYTES = 40_000
_EOS = "<|eod|>"
_ON_DISK = {"tars", "files"}


@dataclass(frozen=True, slots=True)
class Corpus:
    """Input of a case: a directory or URL with `a.jsonl`, `b.jsonl`, `t.pbin` and the datasets `mds` and `tars`."""

    root: str
    tokenizer: Path


Run = Callable[..., object]
"""Verb: `(corpus, output, executor, workers)`, and keyword arguments for a part of a distributed job."""


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work.

    Attributes:
        run: function that runs it.
        reads: possible locations of its input: `"disk"`, `"s3"`.
        shared: whether it takes `part=` and `finish=`, and allows its output next to its input.
        lies: part of the corpus that is the initial output, to which the work adds.
    """

    name: str
    run: Run
    output: str
    reads: tuple[str, ...] = ("disk", "s3")
    shared: bool = False
    lies: str | None = None


def _pack(corpus: Corpus, output: Path | str, executor: Any, workers: int, **options: Any) -> None:
    from penstock.prepare import pack

    inputs = [f"{corpus.root}/a.jsonl", f"{corpus.root}/b.jsonl"]
    how = {"executor": executor, "workers": workers, "task_bytes": _TASK_BYTES}
    pack(inputs, output, tokenizer=corpus.tokenizer, eos=_EOS, **how, **options)


def _convert(corpus: Corpus, output: Path | str, executor: Any, workers: int, **options: Any) -> None:
    from penstock.convert import convert

    convert(f"{corpus.root}/mds", output, to="mds", executor=executor, workers=workers, group_rows=100, **options)


def _convert_tars(corpus: Corpus, output: Path | str, executor: Any, workers: int, **options: Any) -> None:
    from penstock.convert import convert

    how = {"group_rows": 200, "maxcount": 150, "executor": executor, "workers": workers}
    convert(f"{corpus.root}/mds", output, to="webdataset", **how, **options)


def _convert_tokens(corpus: Corpus, output: Path | str, executor: Any, workers: int, **options: Any) -> None:
    from penstock.convert import convert

    convert(f"{corpus.root}/t.pbin", output, file_tokens=3000, executor=executor, workers=workers, **options)


def _prepare(corpus: Corpus, output: Path | str, executor: Any, workers: int, **options: Any) -> None:
    from penstock.prepare.energon.run import prepare_webdataset

    prepare_webdataset(output, split_ratio=(8, 1, 1), executor=executor, workers=workers, **options)


def _prepare_media(corpus: Corpus, output: Path | str, executor: Any, workers: int, **options: Any) -> None:
    from penstock.prepare.media.run import prepare_media

    prepare_media(output, by="glob", patterns="*.wav", executor=executor, workers=workers, **options)


def _index(corpus: Corpus, output: Path, executor: Any, workers: int) -> None:
    from penstock.prepare.jsonl_index import build_index

    build_index(f"{corpus.root}/a.jsonl", index_path=output, executor=executor, workers=workers)


CASES = (
    Case("pack", _pack, "out.pbin", ("disk",), shared=True),
    Case("pack-megatron", functools.partial(_pack, to="megatron"), "out", ("disk",)),
    Case("convert", _convert, "out", shared=True),
    Case("convert-compressed", functools.partial(_convert, compression="zstd:3", hashes=["sha1"]), "out"),
    Case("convert-tars", _convert_tars, "out", ("disk",), shared=True),
    Case("convert-tokens", _convert_tokens, "out", ("disk",), shared=True),
    Case("prepare", _prepare, "out", shared=True, lies="tars"),
    Case("prepare-media", _prepare_media, "out", ("disk",), shared=True, lies="files"),
    Case("index", _index, "a.idx"),
)


class ClusterSuite:
    """Tests of an executor: inherit the class and define the fixture `executor`; see the module.

    Attributes:
        cases: the work.
        least_tasks: minimum number of tasks of a case, so that there is something to disturb.

    Examples:
        >>> import pytest
        >>> from penstock.executors import make_executor
        >>> from penstock.testing import ClusterSuite
        >>> class TestMyCluster(ClusterSuite):
        ...     @pytest.fixture(scope="module")
        ...     @classmethod
        ...     def executor(cls):
        ...         with make_executor("inline", 1) as made:
        ...             yield made
        ...
        ...     def disturb(self):
        ...         pass  # kill a node here
        >>> [case.name for case in TestMyCluster.cases if case.shared]
        ['pack', 'convert', 'convert-tars', 'convert-tokens', 'prepare', 'prepare-media']
    """

    cases: tuple[Case, ...] = CASES
    least_tasks = 1

    def disturb(self) -> None:
        """Disturb the cluster.

        Called when one third, and again when two thirds of the results of a case have arrived.
        """

    @pytest.fixture(scope="module")
    @classmethod
    def bucket(cls) -> str | None:
        """Return the URL of an empty directory in an object store; None if there is none."""
        return None

    @pytest.fixture(scope="module")
    @classmethod
    def corpora(cls, tmp_path_factory: pytest.TempPathFactory, bucket: str | None) -> dict[str, Corpus]:
        """Return location → corpus."""
        folder = tmp_path_factory.mktemp("corpus")
        tokenizer = write_tokenizer(folder / "tokenizer.json")
        write_corpus(folder / "data")
        found = {"disk": Corpus(str(folder / "data"), tokenizer)}
        if bucket is not None:
            upload(folder / "data", bucket)
            found["s3"] = Corpus(bucket, tokenizer)
        return found

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Generate one test per case and location."""
        if "case" in metafunc.fixturenames:
            pairs = [(case, place) for case in self.cases for place in case.reads]
            names = [f"{case.name}-{place}" for case, place in pairs]
            metafunc.parametrize(("case", "place"), pairs, ids=names)

    def test_one_digest(
        self, case: Case, place: str, corpora: dict[str, Corpus], executor: Executor, tmp_path: Path
    ) -> None:
        if place not in corpora:
            pytest.skip("no object store")
        counted = Watched(make_executor("inline", 1).__enter__())
        expected = _digest(case, corpora, place, tmp_path / "inline", counted, 1)
        assert counted.count >= self.least_tasks
        assert _digest(case, corpora, place, tmp_path / "processes", "processes", 2) == expected
        thirds = {counted.count // 3, 2 * counted.count // 3} - {0}
        watched = Watched(executor, thirds, self.disturb)
        assert _digest(case, corpora, place, tmp_path / "executor", watched, 2) == expected
        assert (watched.count, watched.acted) == (counted.count, len(thirds)), "the executor received the same tasks"

    def test_an_array(self, case: Case, place: str, corpora: dict[str, Corpus], tmp_path: Path) -> None:
        """Run five parts: one is killed, one runs twice, one is missing, and the finalize step completes the work."""
        if not case.shared or place not in corpora:
            pytest.skip("it isn't distributed, or no object store")
        expected = _digest(case, corpora, "disk", tmp_path / "inline", "inline", 1)
        made = tmp_path / "array"
        made.mkdir()
        output = _begin(case, corpora, made if place == "disk" else f"{corpora[place].root}-{tmp_path.name}")
        run = functools.partial(case.run, corpora[place], output)
        with pytest.raises(KeyboardInterrupt):
            run(_Killed(), 1, part=(0, 5))
        for index in (1, 1, 3, 2):
            run("inline", 1, part=(index, 5))
        run("inline", 1, finish=True)
        if place != "disk":
            download(output.rpartition("/")[0], made)
        assert digest_of(made) == expected


class _Killed:
    """Executor whose process is killed after its first task."""

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        yield from map(fn, itertools.islice(tasks, 1))
        raise KeyboardInterrupt


@dataclass(slots=True)
class Watched:
    """Executor that counts results, and calls a function at certain counts."""

    executor: Executor
    at: set[int] = field(default_factory=set[int])
    act: Callable[[], None] | None = None
    count: int = 0
    acted: int = 0

    def map(self, fn: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for result in self.executor.map(fn, tasks):
            self.count += 1
            yield result
            if self.count in self.at and self.act is not None:
                self.act()
                self.acted += 1


def _begin(case: Case, corpora: dict[str, Corpus], folder: Path | str) -> str:
    """Return the output of a case in an empty directory, with its initial contents."""
    output = f"{folder}/{case.output}"
    if case.lies is not None:
        lies = Path(corpora["disk"].root, case.lies)
        copy = upload if "://" in output else shutil.copytree  # preserves times: some metadata contains them
        copy(lies, output)
    return output


def _digest(case: Case, corpora: dict[str, Corpus], place: str, folder: Path, executor: Any, workers: int) -> str:
    """Run the work in an empty directory or store, and return one digest of all its files."""
    folder.mkdir()
    far = f"{corpora[place].root}-{folder.parent.name}-{folder.name}"
    root = folder if place == "disk" or case.lies is None else far
    case.run(corpora[place], _begin(case, corpora, root), executor, workers)
    if root == far:
        download(far, folder)
    return digest_of(folder)


def digest_of(folder: Path) -> str:
    """Return one digest of the names and bytes of all files in a directory; for sqlite files, of their rows."""
    found = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = _rows(path) if path.suffix == ".sqlite" else path.read_bytes()
        found.update(f"{path.relative_to(folder)}\n{len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()


def _rows(path: Path) -> bytes:
    connection = sqlite3.connect(path)
    try:
        return "\n".join(connection.iterdump()).encode()
    finally:
        connection.close()


def write_corpus(folder: Path) -> None:
    """Write JSON lines, an MDS dataset, tars and small media, always the same."""
    from penstock.formats import create

    folder.mkdir()
    rng = random.Random(15)
    words = ["stream", "document", "token", "épreuve", "数据", "resume", "pipe", "lane"]
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(_DOCUMENTS)]
    for name, some in (("a", texts[: 2 * _DOCUMENTS // 3]), ("b", texts[2 * _DOCUMENTS // 3 :])):
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in some]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with create(folder / "mds", format="mds", columns={"n": "int", "text": "str"}, size_limit=20_000) as writer:
        for number, text in enumerate(texts):
            writer.write({"n": number, "text": text})
    with create(folder / "t.pbin", format="pbin", token_bytes=1) as tokens:
        for text in texts[:100]:
            tokens.write({"tokens": list(text.encode())})
    (folder / "tars").mkdir()
    for shard in range(6):
        with create(folder / "tars" / f"part-{shard:03}.tar", format="webdataset") as writer:
            for number in range(20):
                writer.write({"__key__": f"{shard:03}{number:03}", "txt": texts[20 * shard + number].encode()})
    (folder / "files").mkdir()
    for number in range(1100):
        (folder / "files" / f"{number:05}.wav").write_bytes(_wav(number))


def _wav(number: int) -> bytes:
    data = bytes(number % 50)
    head = (16).to_bytes(4, "little") + b"\1\0\1\0" + (8000).to_bytes(4, "little") * 2 + b"\1\0\x08\0"
    body = b"WAVEfmt " + head + b"data" + len(data).to_bytes(4, "little") + data
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def write_tokenizer(path: Path) -> Path:
    alphabet = require("tokenizers.pre_tokenizers", extra="tokenize").ByteLevel.alphabet()
    vocab = {token: number for number, token in enumerate([_EOS, *sorted(alphabet)])}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": 0, "content": _EOS, "single_word": False, "lstrip": False, "rstrip": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special | {"normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    path.write_text(json.dumps(content))
    return path


def upload(folder: Path, url: str) -> None:
    """Copy a corpus into a store, except for data that cases only read from a disk."""
    store, root = resolve(url)
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    for name in (name for name in names if name.parts[0] not in _ON_DISK):
        staged = store.stage(f"{root}/{name.as_posix()}", overwrite=True)
        staged.write((folder / name).read_bytes())
        staged.commit()


def download(url: str, folder: Path) -> None:
    store, root = resolve(url)
    for path in store.list(root):
        target = folder / path.removeprefix(f"{root}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.get(path))
