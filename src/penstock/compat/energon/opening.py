"""Opens the tree of a metadataset, and the crude samples of its datasets."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from types import FunctionType
from typing import Any, cast, is_typeddict

from penstock._digest import derive_key
from penstock._kinds import is_stream
from penstock._secrets import logger
from penstock.abc import Source, Stream
from penstock.compat.energon.samples import TYPES, Sample
from penstock.compat.energon.source_info import as_there
from penstock.compat.energon.work import AnyEncoder
from penstock.compat.unused import say_unused
from penstock.cook import Crude, CrudeSample
from penstock.errors import ConfigError
from penstock.formats._exclusions import stored
from penstock.formats.samples.webdataset.sample_types import SampleType
from penstock.formats.samples.webdataset.typed import TypedSource
from penstock.mix.join import JoinedSource
from penstock.mix.repeats import repeats_by_path
from penstock.recipe.build import Builder
from penstock.recipe.code import FROM_JOINED, Merge, make_code
from penstock.recipe.leaf import JSONL
from penstock.recipe.metadataset import read_metadataset
from penstock.recipe.tree import Joined, Leaf, Node, units
from penstock.store.place import fixed_path
from penstock.types import OpenOptions

_log = logger("penstock.compat.energon")
_METADATASET = (".yaml", ".yml")

Path = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Opening:
    """Options with which datasets are opened.

    Attributes:
        split: split of the dataset or metadataset.
        dataset_config: file in `.nv-meta` in the place of `dataset.yaml`.
        split_config: file in `.nv-meta` in the place of `split.yaml`.
        joiners: see `penstock.open_metadataset`.
        sample_types: see `penstock.open_metadataset`.
        trust, follow_links: see `penstock.open_metadataset`.
        sample_type: class that the samples of every dataset must be of; None for any.
        multiplier: copies of a dataset that are shuffled together; see `get_train_dataset`.
    """

    split: str
    dataset_config: str | None = None
    split_config: str | None = None
    joiners: Mapping[str, Any] | None = None
    sample_types: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trust: bool = False
    follow_links: bool = False
    sample_type: Any = None
    multiplier: int | None = 1

    def node(self, path: str) -> Node:
        if path.endswith(_METADATASET):
            if self.dataset_config is not None or self.split_config is not None:
                raise ConfigError("a metadataset sets its own configs", path=path, hint="Set them in the file")
            return read_metadataset(path, self.split)
        if path.endswith(JSONL) and (self.dataset_config is not None or self.split_config is not None):
            raise ConfigError("a JSONL file has no configs", path=path)
        return Leaf(path, self.split, dataset_config=self.dataset_config, split_config=self.split_config)


_DECODER = "Set it in the task encoder: decoder = SampleDecoder(image_decode=…), or decoder = None for bytes"
_ELSEWHERE = {
    **dict.fromkeys(("auto_decode", "image_decode", "av_decode", "video_decode_audio"), _DECODER),
    "handler": "Set it with WorkerConfig(global_error_handler=…)",
}
"""Removed options → their replacements."""

_OPTIONS = (
    "split_part", "dataset_config", "split_config", "joiners", "sample_types", "trust", "follow_links", "sample_type",
)  # fmt: skip


def opened_by(path: Path, options: Mapping[str, Any], split: str) -> tuple[str, Opening]:
    given = dict(options)
    iters = {"parallel_shard_iters": given.pop("parallel_shard_iters", None)}
    say_unused("the dataset", "each sample is addressed individually", iters, {})
    for name in given:
        if name not in _OPTIONS:
            hint = _ELSEWHERE.get(name)
            raise ConfigError("unknown option", found=name, expected=", ".join(_OPTIONS), hint=hint)
    opening = Opening(given.pop("split_part", split))
    return text_of(path), replace(opening, **given)


def text_of(path: Any) -> str:
    """Return a path, which may be an `EPath` of Energon's, as text: absolute, or a URL."""
    return fixed_path(str(path) if type(path).__name__ == "EPath" else os.fspath(path))


def open_node(
    node: Node, opening: Opening, encoder: AnyEncoder, mode: Any, lanes: int, seed: int, multiplier: int | None = 1
) -> tuple[Source[Any] | Stream[Any], tuple[Source[Any], ...]]:
    """Open one epoch as a source, or a blend as a stream, of crude samples with a reference to their dataset."""
    decoder = encoder.decoder
    options = OpenOptions(
        trust=opening.trust,
        follow_links=opening.follow_links,
        image="bytes" if decoder is None else decoder.image_decode,
        trust_parts=decoder is not None and decoder.trust,
        refuse_late=True,
    )
    how = None if decoder is None else decoder.options
    made: list[Source[Any]] = []

    def crude(source: Source[Any], below: Any) -> Crude:
        kind, sample_class = _kind_of_join(source, below) if isinstance(below, Joined) else _kind_of(source)
        _require_type(opening.sample_type, kind, sample_class, below.path if isinstance(below, Leaf) else None)
        # The only part of a JSONL file is already parsed, and a dataset.yaml defines how parts are decoded.
        typed = typed_below(source)
        parsed = typed is not None or (isinstance(below, Leaf) and below.path.endswith(JSONL))
        if typed is not None:
            unheeded = {"shuffle_over_epochs": 1, "ignore_decoder_errors": False}
            say_unused(
                f"{typed.path}: dataset.yaml",
                "the options of the call control how data is read",
                typed.unheeded,
                unheeded,
            )
        one = Crude(
            source,
            subflavors=below.subflavors,
            decode=how,
            decode_parts=not parsed,
            kind=kind,
            sample_class=sample_class,
            described=as_there,
        )
        made.append(one)
        return one

    own_joiners, own_types = _own_classes()
    own_joiners |= _own_functions(node)
    joiners, types = {**own_joiners, **(opening.joiners or {})}, {**own_types, **opening.sample_types}
    code = make_code(joiners, types, opening.trust, opening.follow_links)
    found = Builder(code, options, lanes, crude, multiplier).build(node, mode, derive_key(seed, "energon") >> 12)
    for repeat in repeats_by_path(found):
        _log.warning("%s", repeat)
    return found, tuple(made) if is_stream(found) else (cast(Source[Any], found),)


def _own_classes() -> tuple[dict[str, Any], dict[str, Any]]:
    """Classes that this program has made of `Sample`: those that join in their own way, and the others.

    A file may name them: they are there, so nothing is imported, and nothing runs that the program did not bring.
    """
    found: list[type[Any]] = [Sample]
    for one in found:
        found += one.__subclasses__()
    own = [one for one in found if one.__module__.partition(".")[0] != "penstock" and is_dataclass(one)]
    named = {f"{one.__module__}.{one.__qualname__}": one for one in own}  # made anew for its slots: the new one
    joins = {name for name, one in named.items() if _function(one.from_joined) is not _function(Sample.from_joined)}
    return (
        {name: one for name, one in named.items() if name in joins},
        {name: one for name, one in named.items() if name not in joins},
    )


def _own_functions(node: Node) -> dict[str, Any]:
    """Return the loaded join functions below a node that are annotated to return a `Sample`.

    Nothing is imported, and no other function of a loaded module is accepted: otherwise a file could name a shell or an
    interpreter, and call it with the content of its samples.
    """
    found: dict[str, Any] = {}
    for _, unit, _ in units(node):
        if not isinstance(unit, Joined) or unit.joiner.endswith(FROM_JOINED):
            continue
        module, _, name = unit.joiner.rpartition(".")
        loaded = vars(sys.modules[module]) if module in sys.modules else {}
        fn = loaded.get(name)
        if not isinstance(fn, FunctionType) or fn.__module__ != module:
            continue
        made = fn.__annotations__.get("return")
        if isinstance(made, str):  # an annotation as text, such as "en.TextSample"
            first, *rest = made.strip("\"'").split(".")
            made = functools.reduce(lambda at, name: getattr(at, name, None), rest, loaded.get(first))
        if isinstance(made, type) and issubclass(made, Sample):
            found[unit.joiner] = fn
    return found


def _function(method: Any) -> Any:
    return getattr(method, "__func__", method)


def _require_type(wanted: Any, kind: str | None, sample_class: Any, path: str | None) -> None:
    found = CrudeSample if kind is None else sample_class or TYPES.get(kind)
    if wanted is not None and not (isinstance(found, type) and issubclass(found, wanted)):
        name = kind if found is None else found.__name__
        raise ConfigError("the sample type differs", path=path, found=name, expected=wanted.__name__)


def typed_below(source: Any) -> TypedSource | None:
    while not isinstance(source := stored(source), TypedSource):
        children = source.children()
        source = children.get("source")
        if source is None:
            return None
    return source


def _kind_of(source: Any) -> tuple[str | None, Any]:
    """Return name and class of the samples' type; None for crude samples."""
    typed = typed_below(source)
    return (None, None) if typed is None or typed.sample_type is None else _of_type(typed.sample_type)


def _of_type(one: SampleType) -> tuple[str, Any]:
    return one.name, None if one.cls is None or is_typeddict(one.cls) else one.cls


def _kind_of_join(source: Any, node: Joined) -> tuple[str | None, Any]:
    """Return the class of a join for `_kind_of`, because typed samples need no cooking, else a name without a type."""
    while not isinstance(source, JoinedSource):
        source = source.children()["source"]
    if any(_kind_of(member)[0] is None for member in source.children().values()):
        return None, None
    if isinstance(source.joiner, Merge):
        return _of_type(source.joiner.sample_type)
    name = node.joiner.removesuffix(FROM_JOINED).rpartition(".")[2] if node.joiner.endswith(FROM_JOINED) else "joined"
    return name, None
