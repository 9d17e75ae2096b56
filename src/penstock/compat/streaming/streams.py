"""`Stream`: one of the datasets that a StreamingDataset draws from, with its weight."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, overload

from penstock._optional import imported, plug_ins
from penstock._secrets import logger, redact
from penstock.compat.streaming.checks import NoPlace, as_the_original
from penstock.compat.unused import refuse_overrides, say_unused
from penstock.errors import ConfigError
from penstock.formats import open_source
from penstock.formats._exclusions import stored
from penstock.formats.shards.index_json import INDEX_NAME
from penstock.store.place import Place, fixed_path, local_place, place_of

_log = logger()

_WEIGHTS = ("proportion", "repeat", "choose")
_FETCHING = {"download_retry": 2, "download_timeout": 60, "keep_zip": False}
_NEVER_CALLED = (
    "apply_default", "apply_weights", "validate_weights", "get_shards", "get_index_size", "prepare_shard",
    "set_up_local", "_decompress_shard_part", "_download_file", "_get_temporary_directory", "_prepare_shard_part",
)  # fmt: skip
"""Methods by which the original's streams fetch and weigh."""


class Stream:
    """Dataset and the share of it that an epoch uses.

    A complete dataset in `local` is read from there. Otherwise it is read from `remote`, through Penstock's cache
    folder; nothing is written to `local`.

    Attributes:
        local: the argument, or the directory that the original would derive from `remote`; it isn't created here.

    Args:
        remote: directory or URL of the dataset.
        local: directory that contains it.
        split: subdirectory of both.
        proportion, repeat, choose: at most one; see `penstock.StreamingOrder`.
        download_retry, download_timeout, keep_zip: ignored, with a log message: the store and its cache decide.
        validate_hash: check each shard as a whole with this algorithm before reading from it. By default, shards that
            are fetched whole are checked against the hashes in their index, and ranges of shards aren't checked.
        follow_links: allow links that lead out of the directory, as the original does.

    Raises:
        ConfigError: there are several weights, a negative one, or neither `remote` nor `local`; or a subclass overrides
            a method that is never called.

    Examples:
        >>> from penstock.compat.streaming import MDSWriter, Stream, StreamingDataset
        >>> with MDSWriter(columns={"id": "int", "text": "str"}, out="more") as writer:
        ...     writer.write({"id": 12, "text": "conversation 12"})
        >>> streams = [Stream(local="chat-mds", choose=4), Stream(local="more", repeat=2)]
        >>> StreamingDataset(streams=streams, batch_size=2).epoch_size
        6
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
        follow_links: bool = False,
    ) -> None:
        refuse_overrides(type(self), Stream, _NEVER_CALLED, "Pass remote= and local= of the existing data")
        fetching = {"download_retry": download_retry, "download_timeout": download_timeout, "keep_zip": keep_zip}
        say_unused_fetching("Stream", fetching)
        given = dict(zip(_WEIGHTS, (proportion, repeat, choose), strict=True))
        weight = {name: value for name, value in given.items() if value is not None}
        if len(weight) > 1 or any(value < 0 for value in weight.values()):
            raise ConfigError("a stream needs one weight, 0 or more", found=str(weight))
        if not (remote or local):
            raise NoPlace("a stream needs remote= or local=: Could not create a temporary local directory of nothing")
        self.remote = remote
        self.split = split or ""
        self._local, self._remote = (fixed_path(one) if one else one for one in (local, remote))
        self.local = local or _temporary_folder(str(remote), self.split)
        self.validate_hash = validate_hash
        self.weight: dict[str, Any] = weight
        # Values that the original derives from the weights; set by a dataset.
        self.proportion, self.repeat, self.choose = proportion, repeat, choose
        self.follow_links = follow_links

    def open(self, split: str | None = None, *, trust: bool = False, validate_hash: str | None = None) -> Any:
        """Return the source of this stream, which has `block_starts`.

        Args:
            split: used if the stream has no split.
            trust: decode `pkl` columns.
            validate_hash: used if the stream has no `validate_hash`.

        Raises:
            NotFound: there is no index.
            ConfigError: this isn't a dataset of shards, or it lacks such hashes.
        """
        name = self.split = self.split or split or ""
        where = self._remote or self._local
        if self._local is not None and self._remote is not None:
            local = local_place(self._local, "the local folder of a stream")
            folder = local.child(name) if name else local
            where = local.path if _is_whole(folder, trust, self.follow_links) else where
        validate = self.validate_hash or validate_hash or None
        given: dict[str, Any] = {"trust": trust, "validate_hash": validate, "follow_links": self.follow_links}
        with as_the_original(is_remote=self.remote is not None):
            source: Any = open_source(str(where), split=name or None, **given)
        if not hasattr(source, "block_starts"):
            raise ConfigError("a StreamingDataset reads shards", path=str(where), found=type(source).__name__)
        return source

    @property
    def is_remote(self) -> bool:
        """Whether samples may have to be fetched."""
        return self._remote is not None and not place_of(self._remote).is_local

    def __repr__(self) -> str:
        weight = "".join(f", {name}={value}" for name, value in self.weight.items())
        return redact(f"Stream(remote={self.remote!r}, local={self._local!r}, split={self.split!r}{weight})")


def _temporary_folder(remote: str, split: str) -> str:
    """Return the local folder that the original uses for a remote dataset if none is given."""
    name = hashlib.blake2s(remote.encode(), digest_size=16).hexdigest()
    return f"{tempfile.gettempdir()}/{name}/{split}"


def say_unused_fetching(owner: str, given: Mapping[str, Any], *, cache_limit: Any = None) -> None:
    """Log given arguments on fetching, which have no effect."""
    say_unused(owner, "the store retries on its own, and its cache keeps files as they are", given, _FETCHING)
    say_unused(owner, "all datasets share one budget: PENSTOCK_CACHE_BYTES", {"cache_limit": cache_limit}, {})


def _is_whole(folder: Place, trust: bool, follow_links: bool) -> bool:
    """Whether a folder has an index and each shard that it names, raw or compressed; by a listing a folder, no stat."""
    if not folder.child(INDEX_NAME).exists():
        return False
    with as_the_original(is_remote=True):
        source: Any = stored(open_source(folder.path, trust=trust, follow_links=follow_links))
    listed: dict[str, set[str]] = {}

    def is_there(name: str) -> bool:
        above, _, last = name.rpartition("/")
        if above not in listed:
            listed[above] = set((folder.child(above) if above else folder).names())
        return last in listed[above]

    for shard in source.shards:
        for raw, zipped in ((shard.raw_data, shard.zip_data), (shard.raw_meta, shard.zip_meta)):
            names = [one.basename for one in (raw, zipped) if one is not None]
            if names and not any(map(is_there, names)):
                _log.info("%s is incomplete: %s is missing", folder.path, names[0])
                return False
    return True


_Maker = TypeVar("_Maker", bound=Callable[..., Any])
_GROUP = "streaming_streams_registry"  # the original's, so that its packages are found


class Registry:
    """Name → a class or a function that makes a stream; the original's methods.

    Packages add to it by entry points of the group `streaming_streams_registry`.
    """

    def __init__(self, made: dict[str, Callable[..., Any]]) -> None:
        self._made = made

    @overload
    def register(self, name: str, *, func: _Maker) -> _Maker: ...
    @overload
    def register(self, name: str, *, func: None = None) -> Callable[[_Maker], _Maker]: ...
    def register(self, name: str, *, func: Any = None) -> Any:
        """Add what makes streams, or decorate it; a name that is known is replaced."""
        if func is None:
            return partial(self._add, name)
        return self._add(name, func)

    register_class = register
    __call__ = register

    def get(self, name: str) -> Callable[..., Any]:
        """Return the factory of streams of this name.

        Raises:
            ConfigError: the name isn't registered.
        """
        if name in self._made:
            return self._made[name]
        point = plug_ins(_GROUP, ()).get(name)
        if point is None:
            hint = "streams_registry.register(name, func=…) of penstock.compat.streaming.base.stream adds one"
            raise ConfigError("unknown kind of stream", found=repr(name), expected=", ".join(self._made), hint=hint)
        return imported(point)

    def get_all(self) -> dict[str, Callable[..., Any]]:
        """All that were registered, by name."""
        return dict(self._made)

    def __contains__(self, name: object) -> bool:
        return name in self._made or name in plug_ins(_GROUP, ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def _add(self, name: str, func: Any) -> Any:
        if not callable(func):
            raise ConfigError(f"the stream {name!r} is not a class or function", found=type(func).__name__)
        self._made[name] = func
        return func


streams_registry = Registry({"stream": Stream})


def made_stream(name: str, given: dict[str, Any]) -> Stream:
    """Return a stream of a registered kind.

    Raises:
        ConfigError: the name isn't registered, or its factory doesn't return a `Stream`.
    """
    made = streams_registry.get(name)(**given)
    if not isinstance(made, Stream):
        raise ConfigError(
            f"the stream {name!r} is not a Stream", found=type(made).__name__, expected="a Stream of penstock"
        )
    return made
