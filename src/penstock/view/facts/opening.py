"""Opening of datasets, so that samples are read as stored, and of runs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, Unpack, cast

import numpy as np

from penstock._keywords import Opening, were_given
from penstock._kinds import is_lane_stream, is_stream, is_token_source
from penstock._printable import recordable
from penstock._secrets import redact
from penstock.abc import Source
from penstock.check.summary import manifest_of
from penstock.errors import ConfigError, FormatError, NotFound, PenstockError, UnsafeData
from penstock.formats import SUFFIXES, find_format, open_source
from penstock.formats._exclusions import stored
from penstock.formats._opening import skipping_invalid_lines
from penstock.load.explain import Run, run_of
from penstock.order import Shuffle
from penstock.recipe import open_recipe, read_recipe
from penstock.recipe.build import Mode
from penstock.recipe.metadataset import is_metadataset
from penstock.store.base import Store
from penstock.store.find import peek_names
from penstock.store.place import Place, dataset_at, place_of
from penstock.store.put import read_document
from penstock.types import IntArray, OpenOptions
from penstock.view.facts.panel import Decode

if TYPE_CHECKING:
    from penstock.prepare.tokens.vocabulary import Vocabulary

Target: TypeAlias = str | os.PathLike[str] | Source[Any]
"""A path, a URL, or an open source."""

Refuse: TypeAlias = Callable[[Sequence[str], str], None]

RECIPES = (".yaml", ".yml", ".json")
MOST_NODES = 500
"""Limit on the nodes of a stream that are examined."""
_AS_STORED = ("webdataset", "folder")
_STORED_KINDS = ("image", "images", "pickle")


@dataclass(frozen=True)  # no slots: the tokenizer is loaded at first use
class Opened:
    """A dataset to display.

    Attributes:
        format: name of its format; the kind of the source if it isn't on disk.
        source: source of its samples; excluded samples raise `Excluded`.
        readers: sources for reading samples: the source, or one of decoded and one of stored columns.
        place: its location; None for an open source.
        asked: the explicitly set ones of format, split, layout, eos_id, excludes, planes, flavor.
    """

    name: str
    format: str
    source: Source[Any]
    readers: tuple[Source[Any], ...]
    place: Place | None
    tokenizer: str | None
    options: Mapping[str, Any]
    asked: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.source)

    @property
    def shell_name(self) -> str:
        """Its name, quoted for commands that are shown: names are untrusted."""
        return shlex.quote(self.name)

    @property
    def opening(self) -> str:
        """Options for a command that opens it, each after a space."""
        return self.opening_without()

    def opening_without(self, *names: str) -> str:
        """Return `opening` for a command without these options: `split`, `flavor`."""
        given = ((name.replace("_", "-"), shlex.quote(str(value))) for name, value in self.asked.items())
        return "".join(f" --{name} {value}" for name, value in given if name not in names)

    @property
    def is_tokens(self) -> bool:
        return is_token_source(self.source)

    @property
    def field_map(self) -> Mapping[str, str]:
        """Returned field → the stored parts that it comes from; empty without a field map."""
        if "_field_map" not in self.__dict__:  # not a cached_property: see `text_stops`
            self.__dict__["_field_map"] = self._read_field_map()
        return self.__dict__["_field_map"]

    def _read_field_map(self) -> Mapping[str, str]:
        if self.format != "webdataset" or self.place is None:
            return {}
        from penstock.formats.samples.webdataset.details import read_field_map

        return read_field_map(self.place.store, self.place.path.rstrip("/") or self.place.path)

    def fields_of(self, part: str) -> tuple[str, ...]:
        """Return the names of the fields that come from a stored part: `caption` for `json` and `json[caption]`."""
        return tuple(
            field
            for field, parts in self.field_map.items()
            if part in [one.strip().partition("[")[0] for one in re.split("[;,]", parts)]
        )

    @property
    def text_files(self) -> tuple[Store, Sequence[str]] | None:
        """Store and paths of the text files; None if samples aren't lines."""
        store, path = getattr(stored(self.source), "text", None) or (None, "")
        files = getattr(store, "files", None)
        return None if store is None else (store, [path]) if files is None else (store.base, files)

    @property
    def text_stops(self) -> IntArray:
        """int64[n_files]: cumulative stored bytes of these files, of which there may be a million."""
        if "_stops" not in self.__dict__:  # a cached_property of Python 3.11 blocks those of other datasets
            self.__dict__["_stops"] = self._text_stops()
        return self.__dict__["_stops"]

    def _text_stops(self) -> IntArray:
        text, path = getattr(stored(self.source), "text", None) or (None, "")
        tell = getattr(text, "stored_stops", None)
        if tell is not None:
            return tell()
        return np.array([] if text is None else [text.size(path)], np.int64)

    @property
    def size_bytes(self) -> int | None:
        """Total size of its files, if the source provides it."""
        return getattr(self.source, "size_bytes", None) if self.text_files is None else int(self.text_stops[-1])

    @property
    def decode(self) -> Decode | None:
        """Function from ids to text; None without a tokenizer. Raises if it can't be read."""
        return None if self.vocabulary is None else self.vocabulary.decode

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Text of single ids; likewise."""
        return vocabulary_of(self.tokenizer)

    @property
    def other_tokenizer(self) -> str | None:
        """Sentence if the data was packed with another tokenizer than the chosen one; None otherwise."""
        return other_tokenizer(self.source, self.tokenizer, lambda: self.vocabulary)


@skipping_invalid_lines()
def open_target(
    target: Target, *, format: str | None = None, tokenizer: str | None = None, **opening: Unpack[Opening]
) -> Opened:
    """Open a dataset to look at its samples: images stay as stored, and without `trust` so do pickles.

    The options are those of `penstock.open`. `target` may also be an open source, and `tokenizer` shows the text of
    token documents. Use `read="pread"` for files that may be truncated meanwhile, which kills a process that maps them.

    Raises: as `penstock.open`.
    """
    options = were_given({"format": format, **opening})
    shown = options.keys() - {"read", "trust", "follow_links", "columns"}
    asked = {name: "none" if value in (None, False) else value for name, value in options.items() if name in shown}
    if not isinstance(target, str | os.PathLike):
        if options:
            raise ConfigError("the source is already open", found=", ".join(options), hint="Pass them to ps.open")
        kind = target.recipe()
        name = str(kind.get("path") or type(target).__name__)
        return Opened(
            redact(name), str(kind.get("format", kind.get("kind"))), target, (target,), None, tokenizer, {}, {}
        )
    place = dataset_at(target, follow_links=bool(opening.get("follow_links")))
    known = {name: opening.get(name) for name in ("split", "layout", "eos_id")}
    chosen = find_format(place, format, OpenOptions(**cast(Any, known))).name
    options["format"] = chosen
    if (flavor := opening.get("flavor")) is not None and chosen not in ("jsonl", "jsonl-files"):
        what = f"a flavor only applies to JSONL, not to the format {chosen!r}"
        raise ConfigError(what, path=place.path, found=f"flavor={flavor!r}", hint="Omit --flavor (flavor=)")
    raw: dict[str, Any] = {"raw": True} if chosen in _AS_STORED else {}
    source = open_source(target, **options, **raw)
    readers: tuple[Source[Any], ...] = (source,)
    kinds = _STORED_KINDS[:-1] if opening.get("trust") else _STORED_KINDS
    as_stored = [one.name for one in source.schema.fields if one.kind in kinds]
    if chosen == "mds" and as_stored:
        decoded = [one.name for one in source.schema.fields if one.name not in as_stored]
        others = {name: value for name, value in options.items() if name != "columns"}
        readers = (open_source(target, **others, columns=as_stored, raw=True),)
        readers = (open_source(target, **others, columns=decoded), *readers) if decoded else readers
    return Opened(place.shown, chosen, source, readers, place, tokenizer, options, asked)


@dataclass(frozen=True)  # as above
class OpenedRun:
    name: str
    data: Any
    global_batch: int | None
    world: int | None
    tokenizer: str | None = None
    state: Mapping[str, Any] | None = None

    def shape(self) -> Run:
        """Return the run with its batch sizes.

        Raises:
            ConfigError: neither the recipe, an option nor a state has the batch size.
            ResumeMismatch: the state belongs to another stream.
        """
        return run_of(self.data, self.global_batch, self.world, self.state)

    @property
    def decode(self) -> Decode | None:
        """Function from ids to text; None without a tokenizer. Raises if it can't be read."""
        return None if self.vocabulary is None else self.vocabulary.decode

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """Text of single ids; likewise."""
        return vocabulary_of(self.tokenizer)

    @property
    def other_tokenizer(self) -> str | None:
        """Sentence if the data was packed with another tokenizer than the chosen one; None otherwise."""
        return other_tokenizer(self.data, self.tokenizer, lambda: self.vocabulary)


def vocabulary_of(tokenizer: str | None) -> Vocabulary | None:
    """Return the vocabulary of a tokenizer; None without one. Raises as `load_vocabulary`."""
    if tokenizer is None:
        return None
    from penstock.prepare.tokens.vocabulary import load_vocabulary  # its packages are only needed for tokens

    return load_vocabulary(tokenizer)


def other_tokenizer(data: Any, tokenizer: str | None, vocabulary: Callable[[], Vocabulary | None]) -> str | None:
    """Return the sentence of `other_tokenizer` for a source or all sources of a run, from their side files.

    Names are compared too: the digest of one tokenizer depends on its stored settings.
    """
    if tokenizer is None:
        return None
    names = {place_of(tokenizer).name, place_of(tokenizer).folder().name}
    for one in leaves_of(data):
        known = manifest_of(one)
        if known is None or known.tokenizer_digest is None or known.tokenizer in names:
            continue
        try:
            shown = vocabulary()
        except (PenstockError, ImportError):  # reported where the tokenizer is used
            return None
        if shown is not None and known.tokenizer_digest not in shown.digests:
            name = redact(recordable(known.tokenizer or known.tokenizer_digest))
            return f"these ids come from the tokenizer {name}, but are shown as text with {redact(tokenizer)}"
    return None


def leaves_of(node: Any) -> Iterator[Any]:
    """Yield the sources that a stream draws from, in order; of its first `MOST_NODES` nodes."""
    waiting, left = [node], MOST_NODES
    while waiting and left:
        one, left = waiting.pop(), left - 1
        below = list(one.children().values()) if hasattr(type(one), "children") else []
        waiting += reversed(below)
        if not below:
            yield one


def is_recipe(target: object) -> bool:
    """Return whether a path has the name of a recipe or metadataset; all others are datasets."""
    return isinstance(target, str | os.PathLike) and os.fspath(target).lower().endswith(RECIPES)


def open_run(
    recipe: str | os.PathLike[str] | Any,
    *,
    split: str | None = None,
    mode: Mode | None = None,
    seed: int | None = None,
    lanes: int | None = None,
    global_batch: int | None = None,
    world: int | None = None,
    state: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    tokenizer: str | None = None,
    trust: bool = False,
    follow_links: bool = False,
    refuse: Refuse | None = None,
) -> OpenedRun:
    """Open the run of a recipe or metadataset, or of an open stream or source.

    Without `trust`, functions named by a recipe aren't imported: they raise `UnsafeData` when they are called.

    Args:
        recipe: path or URL; or a stream, lane stream or source.
        split: split of a metadataset, by default train.
        mode: mode of a metadataset: `"train"` is shuffled endlessly, `"val"` is one pass in order; by default val for
            splits with names that begin with val or test.
        seed: seed of the order, if the recipe has none.
        lanes: lanes of the order, likewise.
        global_batch: samples per step; overrides the recipe.
        world: number of data-parallel ranks; overrides the recipe.
        state: saved state of the run, or path of its JSON file; it records the batch size of each step.
        tokenizer: to show ids as text.
        trust: import functions named by the recipe.
        follow_links: read files through links out of a dataset's directory.
        refuse: called with unsupported options and the reason; raises. By default raises `ConfigError`.

    Raises:
        ConfigError: the recipe doesn't support an option, or there are both a batch size and a state.
        FormatError: this isn't a recipe.
        ResumeMismatch: the state belongs to another stream.
    """
    if state is not None and global_batch is not None:
        hint = "Omit --global-batch or --state"
        raise ConfigError("a state already records the batch size", found=f"--global-batch {global_batch}", hint=hint)
    saved = read_state(state) if isinstance(state, str | os.PathLike) else state
    if not isinstance(recipe, str | os.PathLike):
        return _with_state(OpenedRun(type(recipe).__name__, recipe, global_batch, world, tokenizer), saved, world)
    try:
        read = read_recipe(recipe)
    except PenstockError as error:
        raise _no_recipe(place_of(recipe)) or error from None
    theirs = is_metadataset(read.node)
    if not theirs:
        _refuse_given({"split": split, "mode": mode}, "The recipe is not a metadataset", refuse)
    split = split or "train"
    mode = mode or ("val" if split.startswith(("val", "test")) else "train")
    functions: Any = {} if trust else Unread()
    given: dict[str, Any] = {"trust": trust, "follow_links": follow_links}
    given |= {"lanes": lanes} if theirs and lanes else {}
    data = open_recipe(read, functions=functions, split=split, mode=mode, seed=seed, **given)
    endless = is_stream(data) or is_lane_stream(data)
    if not theirs and endless:
        _refuse_given({"seed": seed, "lanes": lanes}, "The recipe already has an order", refuse)
    shuffled = (mode == "train") if theirs else seed is not None
    data = ordered(data, shuffled=shuffled, seed=seed, lanes=lanes)
    said = {"global_batch": global_batch, "world": world}
    batch: dict[str, Any] = {name: said[name] if said[name] is not None else read.batch.get(name) for name in said}
    return _with_state(OpenedRun(place_of(recipe).shown, data, **batch, tokenizer=tokenizer), saved, world)


def _with_state(run: OpenedRun, state: Mapping[str, Any] | None, world: int | None) -> OpenedRun:
    """Return the run in the shape that its state records, with other ranks only if `world` asks for them."""
    if state is None:
        return run
    run = dataclasses.replace(run, state=state, world=world)
    return dataclasses.replace(run, global_batch=run.shape().history[-1].global_batch)


def read_state(path: str | os.PathLike[str]) -> Any:
    """Read a saved state of a run from its JSON file.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: it isn't JSON.
    """
    place = place_of(path)
    try:
        return json.loads(read_document(place.store, place.path))
    except NotFound:
        raise NotFound("the state file doesn't exist", path=place.path, hint="Check the path") from None
    except ValueError as error:
        raise FormatError("the state is not valid JSON", path=place.path, found=str(error)) from None


def _refuse_given(asked: Mapping[str, Any], why: str, refuse: Refuse | None) -> None:
    given = [name for name, value in asked.items() if value is not None]
    if given and refuse is not None:
        refuse(given, why)
    if given:
        raise ConfigError(why[0].lower() + why[1:], found=", ".join(given), hint="Omit them")


def ordered(data: Any, *, shuffled: bool, seed: int | None, lanes: int | None) -> Any:
    """Return a source shuffled endlessly, if requested; a stream as it is."""
    if is_stream(data) or is_lane_stream(data) or not shuffled:
        return data
    if not len(data):
        raise ConfigError("there is nothing to read", found="no sample")
    return Shuffle(data, seed or 0, lanes=lanes or 1)


class Unread(dict[str, Any]):
    """Mapping that replaces every function of a recipe: none of them runs when only indexes are read."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a function that raises an error when called; two if two are named."""
        both = tuple(None if one == "-" else _unread(one) for one in name.split(" "))
        return both if len(both) == 2 else both[0]


def _unread(name: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise UnsafeData(
            "a function in the recipe would have to run", found=name, hint="Pass --trust if you trust the recipe"
        )

    return refused


def _no_recipe(place: Place) -> FormatError | None:
    """Return the error for a dataset in place of a recipe; None for possible recipes."""
    if place.path.lower().endswith(RECIPES) or not place.exists():
        return None
    name = place.name
    hint = (
        f"A recipe for one dataset is a file with the line `path: {name}`. To inspect it, use `penstock find` or `head`"
    )
    what = "a .yaml or .json file that describes a run"
    return FormatError("not a recipe", path=place.path, expected=what, hint=hint)


MOST_FILES = 1000
_MOST_ENTRIES = 5000


def first_files_of(folder: Place) -> Opened | None:
    """Return the first JSONL files in a directory listing as one dataset, if any.

    At most 1,000 of the first 5,000 names, without links. On a remote store this is one listing request.
    """
    try:
        if not folder.is_folder():
            return None
        named = (one for one in peek_names(folder.store, folder.path, _MOST_ENTRIES) if one.endswith(SUFFIXES["jsonl"]))
        found = islice((one for one in map(folder.child, named) if not one.is_link()), MOST_FILES)
        files = [one.path for one in found]
        if not files:
            return None
        source = open_source(files)
    except (PenstockError, OSError):  # reported when all of it is opened
        return None
    return Opened(folder.shown, "jsonl-files", source, (source,), folder, None, {}, {})
