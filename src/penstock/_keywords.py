"""Options of public functions as typed keywords.

Functions declare `**options: Unpack[Opening]`, so that editors list the options and type checkers know them.

`Opening` is the only definition of its options. `penstock.open`, `OpenOptions`, the schema of recipes and the options
of commands are made from it, and opening raises `ConfigError` if the format lacks the trait in `needs`. To add
an option, add a line.
"""

import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, Union, get_args, get_origin

ReadMode: TypeAlias = Literal["auto", "mmap", "pread"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}


@dataclass(frozen=True, slots=True)
class Opt:
    """Definition of an option, next to its name and type.

    Attributes:
        help: help of the command-line option; `{whose}` stands for the dataset. Empty if there is no such option.
        default: default.
        needs: trait of the formats that support the option, and how errors call it.
        recipe: JSON schema in recipes; made from the type by default, False if recipes don't have it.
        common: all commands that open a dataset have the option.
        choices: values on the command line.
        metavar: name of the value in help.
        shown: default as shown in help; True shows `default`.
    """

    help: str = ""
    default: Any = None
    needs: tuple[str, str] | None = None
    recipe: Any = None
    common: bool = False
    choices: tuple[str, ...] | None = None
    metavar: str = "NAME"
    shown: str | bool | None = None


# fmt: off
class Opening(TypedDict, total=False):
    """Options of `penstock.open`, except the format and `decode`."""

    split: Annotated[str | None, Opt(
        "Split of {whose}, for formats with splits.", needs=("splits", "splits"), common=True)]
    flavor: Annotated[str, Opt(
        "Index rules of JSONL files.", "modalities", choices=("modalities", "energon"), shown="modalities")]
    raw: Annotated[bool, Opt(default=False)]
    trust: Annotated[bool, Opt("Run code stored with the data.", False)]
    layout: Annotated[str | None, Opt(
        "Layout of the data, if ambiguous: an older layout, or the width of raw tokens, such as uint16.",
        needs=("layouts", "layouts to choose from"), common=True)]
    vocab_size: Annotated[int | None, Opt(needs=("tokens", "token ids"))]
    eos_id: Annotated[int | None, Opt(
        "ID of the token that ends each document, if the data doesn't record it.", metavar="ID",
        needs=("tokens", "documents of tokens"), common=True)]
    columns: Annotated[Sequence[str] | None, Opt("Only show these fields.", metavar="NAME,…")]
    read: Annotated[ReadMode, Opt(default="auto")]
    validate_hash: Annotated[str | None, Opt(needs=("hashes", "digests in an index"))]
    follow_links: Annotated[bool, Opt("Follow symbolic links that lead outside the dataset's directory.", False)]
    excludes: Annotated[Any, Opt(
        "Exclude list of {whose}, or none to read all samples.", metavar="FILE|none",
        shown="the list next to the dataset, if local", recipe={"anyOf": [_TEXT, {"const": False}]})]
    mask_tokens: Annotated[int | None, Opt()]
    tokens_column: Annotated[str | None, Opt(
        "Source column with lists of token IDs, one document per row.", recipe=_TEXT)]
    tokens_dtype: Annotated[str | None, Opt(
        "Dtype of the token IDs if the column holds bytes, such as int64.", metavar="DTYPE", recipe=_TEXT)]
    mask_column: Annotated[str | None, Opt(
        "Source column with the loss mask, or the labels, of these tokens.", recipe=_TEXT)]
    one_document: Annotated[bool, Opt(
        "The source has no document borders: documents end at each --eos-id, or all tokens are one document.", False)]
    documents: Annotated[Literal["rows", "eos"] | None, Opt(
        "Documents of --tokens-column: one per row, or up to each EOS token, across rows.",
        choices=("rows", "eos"), recipe={"enum": ["rows", "eos"]})]
    planes: Annotated[str | None, Opt(
        "Read planes such as loss masks (auto), or only the tokens (none).", "auto", choices=("auto", "none"),
        shown=True, common=True)]
# fmt: on


class Decoding(Opening, total=False):
    """Options of `penstock.open`, except the format."""

    decode: Annotated[
        Literal["uint8", "uint8-0.2"] | None, Opt(needs=("images", "images"), recipe={"enum": ["uint8", "uint8-0.2"]})
    ]


class Reading(Decoding, total=False):
    """Fields of `OpenOptions`: what formats get, with fields that are only set by Penstock itself."""

    image: Annotated[str | None, Opt(recipe=False)]
    trust_parts: Annotated[bool, Opt(default=False, recipe=False)]
    refuse_late: Annotated[bool, Opt(default=False, recipe=False)]


def definitions(keywords: type[Any]) -> Iterator[tuple[str, Any, Opt]]:
    """Yield the name, type and definition of each option of one of the classes above."""
    for name, annotation in keywords.__annotations__.items():
        kind, definition = get_args(annotation)
        yield name, kind, definition


def recipe_schema_of(kind: Any, option: Opt) -> dict[str, Any]:
    """Return the JSON schema of an option in recipes."""
    if option.recipe is not None:
        return option.recipe
    names: dict[Any, str] = {str: "string", int: "integer", bool: "boolean", types.NoneType: "null"}
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if get_origin(kind) is Literal:
        return {"enum": list(get_args(kind))}
    if kind is str:
        return _TEXT
    found = [names.get(one, "array") for one in parts]
    return {"type": found if found[1:] else found[0], **({"items": _TEXT} if "array" in found else {})}


def with_options(
    keywords: type[Any], *, omit: Collection[str] = (), strict: bool = False
) -> Callable[[_Function], _Function]:
    """Give a function that takes `**options: Unpack[keywords]` a signature that lists the options.

    Args:
        keywords: one of the classes above.
        omit: options that the function doesn't have.
        strict: raise `TypeError` for other names, as Python does; without it, the function does that itself.
    """

    def add(function: _Function) -> _Function:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name, kind, option in definitions(keywords):
            if name not in omit:
                named.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=kind)
                )
        known = {one.name for one in named}

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            if unknown := given.keys() - known:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {min(unknown)!r}")
            return function(*args, **given)

        decorated: Any = call if strict else function
        decorated.__signature__ = signature.replace(parameters=named)
        return decorated

    return add


class Running(TypedDict, total=False):
    """Options of a run over a recipe or metadataset."""

    split: str | None
    mode: Literal["train", "val"] | None
    global_batch: int | None
    seed: int | None
    world: int | None
    lanes: int | None
    trust: bool
    follow_links: bool


class Purging(TypedDict, total=False):
    """Options of `penstock.purge`."""

    format: str | None
    split: str | None
    layout: str | None
    eos_id: int | None
    planes: str | None
    trust: bool
    follow_links: bool
    to: str | None
    overwrite: bool
    dry_run: bool
    progress: Callable[..., None] | None
    executor: Any
    workers: int | None


class Reshaping(Opening, total=False):
    """Further options of verbs on whole datasets, such as the sizes of tars."""

    maxcount: int | None
    maxsize: int | None
    pattern: str | None
    prefix_keys: bool
    drop_planes: bool


class _Writers(TypedDict, total=False):
    """Options of the writers of all built-in formats, except columns; each writer supports some of them."""

    token_bytes: int | None
    vocab_size: int | None
    eos_id: int | None
    tokenizer: str | None
    tokenizer_digest: str | None
    inputs: Mapping[str, str]
    options: Mapping[str, Any]
    dtype: str | None
    modes: Any
    split: str | None
    zarr_format: int
    compressor: Any
    chunk_tokens: int
    chunk_starts: int
    shard_tokens: int | None
    size_limit: int | str | None
    compression: str | None
    hashes: Sequence[str] | None
    newline: str
    separator: str
    flavor: str
    maxcount: int | None
    maxsize: int | None
    pattern: str | None
    split_ratio: Any
    shuffle_tars: bool
    dataset: Any
    code: Mapping[str, bytes]


class Writing(_Writers, total=False):
    """Options of `penstock.create`; formats of plug-ins define their own."""

    columns: Any
    planes: Mapping[str, str] | None


class Converting(_Writers, total=False):
    """Further options of `penstock.convert`: of the source as `Opening`, of the target as `Writing`."""

    source_split: str | None
    source_separator: str | None
    source_encoding: str | None
    raw: bool
    trust: bool
    layout: str | None
    read: ReadMode
    validate_hash: str | None
    follow_links: bool
    excludes: Any
    tokens_column: str | None
    tokens_dtype: str | None
    mask_column: str | None
    one_document: bool
    planes: str | None
    documents: Literal["rows", "eos"] | None
    drop_planes: bool
    prefix_keys: bool


class Preparing(TypedDict, total=False):
    """Further options of `penstock.prepare`, as of `penstock.prepare.energon.run.prepare_webdataset`."""

    split_ratio: Mapping[str, float] | Sequence[float] | str | None
    split_parts: Mapping[str, str] | Sequence[tuple[str, str]] | None
    exclude: str | None
    workers: int | None
    tar_index_only: bool
    shuffle_tars: bool
    overwrite: bool
    sqlite: bool
    executor: Any
    follow_links: bool
    part: tuple[int, int] | None
    finish: bool
    no_work: bool
    restart: bool
    progress: Callable[[int, int], None] | None


def were_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults, None or False except for `planes`.

    0 is a value, for example of `eos_id`; so is `excludes=False`.
    """
    return {name: value for name, value in options.items() if _was_given(name, value)}


def _was_given(name: str, value: Any) -> bool:
    if name == "planes":
        return value != "auto"
    return value is not None and (value is not False or name == "excludes")
