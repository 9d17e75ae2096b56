"""Modalities' readers of JSONL: the lines themselves, and their texts as token ids."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from penstock._arrays import as_index
from penstock._secrets import logger
from penstock.compat.modalities.embedded import write_index
from penstock.compat.torch_bases import Dataset
from penstock.compat.unused import refuse_overrides
from penstock.errors import ConfigError, Corrupt, NotFound, PrepareError
from penstock.formats.jsonl.index import load_lines
from penstock.prepare.jsonl_index import build_index
from penstock.prepare.tokens.reading import make_reader, select
from penstock.store.exclude_list import require_no_list
from penstock.store.local import LocalStore
from penstock.store.place import fixed_path, local_path

_log = logger()
_TAKEN = "another run is writing this output"
_WAIT_S = 3600.0
_LOOK_S = 0.2
_SHOWN_LINES = 10


def _fixed(path: str | os.PathLike[str], what: str) -> Path:
    return Path(fixed_path(local_path(path, what)))


class IndexGenerator:
    """Writer of the index of a JSONL file.

    Args:
        src_file: the file.
        drop_faulty_entries: skip lines of invalid JSON, with a warning that lists them.

    Raises:
        NotFound: no such file.
    """

    def __init__(self, src_file: Path, drop_faulty_entries: bool = False) -> None:
        self.src_file = _fixed(src_file, "a Modalities JSONL file")
        self.drop_faulty_entries = drop_faulty_entries
        if not self.src_file.is_file():
            raise NotFound("no such file", path=self.src_file)

    def create_index(self, target_path_for_index_file: Path) -> None:
        """Write the index, replacing an existing one.

        Raises:
            FaultyLine: a line is invalid JSON; no index is written.
        """
        done = write_index(self.src_file, target_path_for_index_file, drops=self.drop_faulty_entries, overwrite=True)
        if done.num_dropped:
            lines = ", ".join(str(one.line) for one in done.dropped[:_SHOWN_LINES])
            more = ", …" if done.num_dropped > _SHOWN_LINES else ""
            warnings.warn(f"{self.src_file}: {done.num_dropped:,} invalid lines skipped: {lines}{more}", stacklevel=2)


class LargeFileLinesReader:
    """Lines of a JSONL file, found with its index: `[i]` is text, or bytes with `encoding=None`.

    An index that doesn't match its file is an error; the original reads whatever is at its offsets. An empty file has
    no lines; the original fails. Negative indices count from the end.

    Attributes:
        index: int64[k, 2]: start and length in bytes of each line, read-only.

    Args:
        raw_data_path: the JSONL file.
        index_path: the index; by default next to the file, with the last suffix replaced by `.idx`.
        encoding: encoding of the text; None for bytes.
        use_sample_length_from_index: False reads up to the start of the next line in the index, including line ends.

    Raises:
        NotFound: the file or the index doesn't exist.
        FormatError, UnsafeData: the index isn't a plain list of pairs, or doesn't match the file.

    Examples:
        >>> from pathlib import Path
        >>> from penstock.compat.modalities import LargeFileLinesReader, create_raw_data_index
        >>> done = create_raw_data_index(Path("docs.jsonl"))
        >>> reader = LargeFileLinesReader("docs.jsonl")
        >>> len(reader)
        6
        >>> reader[3]
        '{"id": "a4", "lang": "en", "text": "The gate controls the flow."}'
    """

    def __init__(
        self,
        raw_data_path: str | os.PathLike[str],
        index_path: str | os.PathLike[str] | None = None,
        encoding: str | None = "utf-8",
        use_sample_length_from_index: bool = True,
    ) -> None:
        refuse_overrides(type(self), LargeFileLinesReader, ("_read_from_raw_file",), "Override __getitem__")
        self.raw_data_path = _fixed(raw_data_path, "a Modalities JSONL file")
        self.index_path = self.default_index_path(self.raw_data_path, index_path)
        self.encoding = encoding
        self.use_sample_length_from_index = use_sample_length_from_index
        store = LocalStore()
        if not self.raw_data_path.is_file():
            raise NotFound("no such file", path=self.raw_data_path)
        if not self.index_path.is_file():
            hint = f"Create it with `penstock index {self.raw_data_path}`"
            raise NotFound("there is no index", path=self.index_path, hint=hint)
        require_no_list(store, f"{self.raw_data_path}.penstock", "this class uses its own index")
        self.index = load_lines(store, str(self.raw_data_path), str(self.index_path))
        self._data: memoryview | None = store.mmap(str(self.raw_data_path)).data

    def __reduce__(self) -> tuple[object, ...]:
        return (
            LargeFileLinesReader,
            (self.raw_data_path, self.index_path, self.encoding, self.use_sample_length_from_index),
        )

    @staticmethod
    def default_index_path(
        raw_data_path: str | os.PathLike[str], index_path: str | os.PathLike[str] | None = None
    ) -> Path:
        """Return the path of the index."""
        raw_data_path = Path(local_path(raw_data_path, "a Modalities JSONL file"))
        if index_path is None:
            return raw_data_path.with_name(f"{raw_data_path.stem}.idx")
        return _fixed(index_path, "its index")

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: int) -> str | bytes:
        data = self._bytes(key)
        return data if self.encoding is None else data.decode(self.encoding)

    def close(self) -> None:
        """Close the file; reading is then an error."""
        self._data = None

    def _bytes(self, key: int) -> bytes:
        if self._data is None:
            raise ValueError("the reader is closed")
        place = as_index(key, len(self))
        start, length = self.index[place].tolist()
        stop = start + length
        if not self.use_sample_length_from_index:
            stop = int(self.index[place + 1, 0]) if place + 1 < len(self) else len(self._data)
        return bytes(self._data[start:stop])


def _have_index(index_path: Path, raw_data_path: Path) -> None:
    """Write the index of a file if it is missing, or wait for the process that writes it."""
    waited_until = time.monotonic() + _WAIT_S
    while raw_data_path.is_file() and not index_path.is_file():
        try:
            build_index(raw_data_path, index_path)
            _log.info("%s: created the index of %s", index_path, raw_data_path)
        except (ConfigError, PrepareError) as error:
            if index_path.is_file():  # another process was sooner
                return
            if error.what != _TAKEN or time.monotonic() > waited_until:
                raise
            time.sleep(_LOOK_S)


class MemMapDataset(Dataset):
    """Texts of a JSONL file as lists of token ids, tokenized on demand. No EOS token is added.

    A missing index is created by one process while the others wait; Modalities fails instead.

    Args:
        raw_data_path: the JSONL file.
        tokenizer: any object with `tokenize(text=...)`, such as Modalities' own tokenizers.
        sample_key: accepted and not used, as in the original.
        index_path: the index; by default next to the file, created if it is missing.
        jq_pattern: selects the text of a line; plain paths don't need the `jq` package.

    Raises:
        NotFound: the file doesn't exist.
        Corrupt: a line isn't JSON, so no index can be created.
        MissingExtra: the pattern needs the `jq` package.

    Examples:
        >>> from tokenizers import Tokenizer
        >>> from penstock.compat.modalities import MemMapDataset
        >>> class MyTokenizer:
        ...     def __init__(self):
        ...         self.tokenizer = Tokenizer.from_file("tokenizer.json")
        ...
        ...     def tokenize(self, text):
        ...         return self.tokenizer.encode(text).ids
        >>> tokenizer = MyTokenizer()
        >>> dataset = MemMapDataset("docs.jsonl", tokenizer, sample_key="text")
        >>> len(dataset)
        6
        >>> tokenizer.tokenizer.decode(dataset[5])
        'Open the gate slowly.'
    """

    def __init__(
        self,
        raw_data_path: str | os.PathLike[str],
        tokenizer: Any,
        sample_key: str,
        index_path: str | os.PathLike[str] | None = None,
        jq_pattern: str = ".text",
    ) -> None:
        self.raw_data_path = raw_data_path
        self.sample_key = sample_key
        self.tokenizer = tokenizer
        _have_index(LargeFileLinesReader.default_index_path(raw_data_path, index_path), Path(raw_data_path))
        self.reader = LargeFileLinesReader(raw_data_path, index_path, encoding=None)
        self._jq_pattern = jq_pattern
        self._texts = make_reader(select(jq=jq_pattern))

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.raw_data_path, self.tokenizer, self.sample_key, self.reader.index_path, self._jq_pattern)
        return (type(self), given)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, idx: int) -> list[int]:
        place = as_index(idx, len(self))
        line: Any = self.reader[place]
        found = self._texts.read(line)
        if not found.texts:
            raise Corrupt(
                f"the line at index {place} has no text",
                path=self.raw_data_path,
                offset_bytes=int(self.reader.index[place, 0]),
                found=found.faults.get(0, "an empty line"),
                hint="Fix the line, or omit it from the index",
            )
        return self.tokenizer.tokenize(text=found.texts[0].decode())
