"""Penstock's recipes: files that describe a stream or source.

A recipe is a node, or a map with `stream` (or `source`) and `batch`. A node is the result of `recipe()` of any source
or
stream, or a short form (`short.py`). Paths are relative to the file. Functions are named `module:name`; the caller
registers them, or they are imported under `trust`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from penstock._limits import MOST_NODES_DEEP
from penstock._secrets import logger
from penstock.errors import ConfigError, PenstockError
from penstock.mix.repeats import repeats_by_path
from penstock.recipe.build import Builder, Mode
from penstock.recipe.code import Code, make_code
from penstock.recipe.context import Budget, Context, check_nesting
from penstock.recipe.kinds import KINDS, Kind
from penstock.recipe.metadataset import build_metadataset, is_metadataset
from penstock.recipe.short import BASES, MODIFIERS, OF_BATCH, OWN, TOP, VERSION, expand
from penstock.recipe.values import check_keys, check_map, check_value, unknown
from penstock.store.place import place_of
from penstock.types import OpenOptions

_log = logger("penstock.recipe")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Recipe that has been read but not opened.

    Attributes:
        node: the recipe's content, or that of one of Energon's metadatasets.
        file: path of the file; None for a dict.
        batch: its batch settings: `global_batch, micro_batch, world, tail`.

    Examples:
        >>> import penstock as ps
        >>> from penstock.recipe import read_recipe
        >>> recipe = read_recipe("recipe.json")
        >>> ps.open_recipe(recipe).counts
        {'text': 3, 'code': 1}
    """

    node: Any
    file: str | None
    batch: Mapping[str, Any] = field(default_factory=dict[str, Any])


def open_recipe(
    recipe: str | os.PathLike[str] | Mapping[str, Any] | Recipe,
    *,
    functions: Mapping[str, Any] | None = None,
    sample_types: Mapping[str, Any] | None = None,
    trust: bool = False,
    follow_links: bool = False,
    split: str = "train",
    mode: Mode = "train",
    seed: int | None = None,
    lanes: int = 1,
) -> Any:
    """Open the stream or source that a recipe describes. Its fingerprint equals that of the original.

    Args:
        recipe: file (YAML or JSON), URL, or the result of `recipe()`; also one of Energon's metadatasets.
        functions: `module:name` → function of that name in the recipe; for packing on the fly a pair (select, merge).
        sample_types: `module.Class` → a dataclass or TypedDict.
        trust: import functions that are in neither mapping, and run code that comes with the data.
        follow_links: read datasets through links that lead out of their directories.
        split: split of a metadataset.
        mode: of a metadataset: `"train"` or `"val"`.
        seed: seed of a metadataset's blend.
        lanes: lanes of a metadataset's blend.

    Returns:
        A stream, a lane stream, or a source.

    Raises:
        NotFound: the file doesn't exist.
        FormatError: the file is neither YAML nor JSON.
        ConfigError: a key or kind is unknown, a value is invalid, or the result differs from what the recipe records.
        UnsafeData: a function is neither registered nor trusted, or the data contains links that weren't allowed.

    Examples:
        >>> import penstock as ps
        >>> blend = ps.open_recipe("recipe.json")
        >>> blend.counts
        {'text': 3, 'code': 1}
        >>> ps.open_recipe(blend.recipe()).fingerprint == blend.fingerprint
        True
    """
    code = make_code(functions, sample_types, trust, follow_links)
    read = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    options = {"split": split, "mode": mode, "seed": seed, "lanes": lanes}
    made = _opened(read, _Opening(code, Budget(), (), 0), options)
    for repeat in repeats_by_path(made):
        _log.warning("%s", repeat)
    return made


def read_recipe(recipe: str | os.PathLike[str] | Mapping[str, Any]) -> Recipe:
    """Read a recipe without opening its datasets; raises as `open_recipe`.

    Args:
        recipe: file (YAML or JSON), URL, or the result of `recipe()`.

    Examples:
        >>> from penstock.recipe import read_recipe
        >>> read_recipe("recipe.json").node["kind"]
        'blend'
    """
    if isinstance(recipe, Mapping):
        check_nesting(recipe, None)
        return _split(dict(recipe), None)
    return _read(recipe, Budget(), ())


def _read(recipe: str | os.PathLike[str], budget: Budget, files: tuple[str, ...]) -> Recipe:
    file = place_of(recipe).absolute
    return _split(check_map(budget.read(file, "recipe", files), "the recipe", file), file)


def _split(value: dict[str, Any], file: str | None) -> Recipe:
    if is_metadataset(value):
        return Recipe(value, file)
    if "kind" in value or not any(key in value for key in TOP):
        if not any(key in value for key in ("kind", *BASES)):
            options = (key for keys in OWN.values() for key in keys)
            check_keys(value, ("kind", *TOP, *BASES, *MODIFIERS, *options), "the recipe", file)
        return Recipe(value, file)
    check_keys(value, ("kind", *TOP), "the recipe", file)
    if value.get("penstock", VERSION) != VERSION:
        raise ConfigError("unsupported recipe version", path=file, found=value["penstock"], expected=VERSION)
    nodes = [value[key] for key in ("stream", "source") if key in value]
    if len(nodes) != 1:
        raise ConfigError("a recipe needs either a stream or a source", path=file, found=f"{len(nodes)}")
    batch = value.get("batch")
    if batch is None:
        return Recipe(nodes[0], file)
    check_value(batch, OF_BATCH, "the recipe.batch", file)
    return Recipe(nodes[0], file, {"global_batch": batch} if isinstance(batch, int) else batch)


@dataclass(frozen=True, slots=True)
class _Opening:
    """Settings shared by all files of a recipe, and the files that lead to one of them."""

    code: Code
    budget: Budget
    files: tuple[str, ...]
    deep: int
    global_batch: int | None = None


def _opened(recipe: Recipe, opening: _Opening, options: Mapping[str, Any]) -> Any:
    code, budget, files = opening.code, opening.budget, opening.files
    if recipe.file is not None and recipe.file in files:
        raise ConfigError("a recipe contains itself", path=recipe.file, found=" → ".join((*files, recipe.file)))
    if is_metadataset(recipe.node):
        if recipe.file is None:
            raise ConfigError("a metadataset must be opened from its file", hint="Pass its path")
        given = OpenOptions(trust=code.trust, follow_links=code.follow_links)
        builder = Builder(code, given, options.get("lanes", 1), None)
        chosen = (options.get("split", "train"), options.get("mode", "train"), options.get("seed"))
        return build_metadataset(builder, recipe.file, *chosen, budget)
    inside = files if recipe.file is None else (*files, recipe.file)
    step = opening.global_batch or recipe.batch.get("global_batch")
    open_file = partial(_open_file, opening=replace(opening, files=inside, global_batch=step))
    return make(Context(code, recipe.file, "", make, open_file, budget, opening.deep, step), recipe.node)


def _open_file(path: str, options: Mapping[str, Any], deep: int, *, opening: _Opening) -> Any:
    return _opened(_read(path, opening.budget, opening.files), replace(opening, deep=deep), options)


def make(context: Context, node: Any) -> Any:
    what = context.at or "the recipe"
    context.budget.count_node(context.file)
    if context.deep > MOST_NODES_DEEP:
        raise ConfigError("the recipe is nested too deeply", path=context.file, expected=f"{MOST_NODES_DEEP} levels")
    full = expand(node, context.file, context.at)
    kind = full["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown(str(kind), tuple(KINDS), f"{what} has an unknown kind", context.file)
    known = KINDS[kind]
    check_keys(full, known.keys, f"{what} ({kind})", context.file)
    missing = [key for key in known.required if key not in full]
    if known.one_of and sum(key in full for key in known.one_of) != 1:
        missing.append(" or ".join(known.one_of))
    if missing:
        raise ConfigError(f"{what} ({kind}) lacks {', '.join(missing)}", path=context.file)
    for key, schema in {**known.required, **known.optional}.items():
        if key in full:
            check_value(full[key], schema, f"{what}.{key}", context.file)
    try:
        made = known.make(context, full)
    except PenstockError as error:
        error.path = error.path or context.file
        raise
    _check_derived(full, made, known, what, context.file)
    return made


def _check_derived(given: Mapping[str, Any], made: Any, known: Kind, what: str, path: str | None) -> None:
    """Check derived values (versions, counts, digests) against those in the recipe."""
    expected = {key: given[key] for key in known.derived if key in given}
    counts = {one["name"]: one["count"] for one in given.get("children", ()) if "count" in one}
    if not expected and not counts:
        return
    own = made.recipe()
    for key, value in expected.items():
        if own.get(key) != value:
            raise ConfigError(
                f"{what} has a different {key} than recorded in the recipe",
                path=path,
                found=own.get(key),
                expected=value,
            )
    for name, count in counts.items():
        if made.counts.get(name, 0) != count:
            raise ConfigError(
                f"the weights of {what} give {name!r} a different count than the recipe",
                path=path, found=made.counts.get(name, 0), expected=count,
                hint="Remove `count` after editing weights",
            )  # fmt: skip
