"""Opens recipes for commands: Energon's metadatasets and Penstock's recipes, with the flags that add to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import click

from penstock.cli._energon import refuse_given
from penstock.cli._output import follow_links_option
from penstock.errors import ConfigError, FormatError, PenstockError, UnsafeData

Command = TypeVar("Command", bound=Callable[..., Any])
RECIPES = (".yaml", ".yml", ".json")


def recipe_options(command: Command) -> Command:
    """`RECIPE --split --mode --global-batch --seed --world --lanes --trust --follow-links`."""
    for option in (
        follow_links_option,
        click.option("--trust", is_flag=True, help="Import the functions that the recipe names."),
        click.option("--lanes", type=click.IntRange(1), help="Lanes of the order, where the recipe has none."),
        click.option("--world", type=click.IntRange(1), help="Data-parallel ranks."),
        click.option("--seed", type=int, help="Seed of the order, where the recipe has none; 0 by default."),
        click.option("--global-batch", type=click.IntRange(1), help="Samples of a step, all ranks together."),
        click.option(
            "--mode",
            type=click.Choice(["train", "val"]),
            help="Of a metadataset: shuffled without end, or one pass in order. By default val for a split whose "
            "name begins with val or test.",
        ),
        click.option("--split", default="train", show_default=True, help="Split of a metadataset."),
        click.argument("recipe"),
    ):
        command = option(command)
    return command


def open_run(recipe: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The stream or source that a run over a recipe reads, and its batch: `global_batch` and `world`."""
    from penstock._kinds import is_lane_stream, is_stream
    from penstock.recipe import open_recipe, read_recipe
    from penstock.recipe.metadataset import is_metadataset

    try:
        read = read_recipe(recipe)
    except PenstockError as error:
        raise _no_recipe(recipe) or error from None
    split, seed, lanes = options["split"], options["seed"], options["lanes"]
    theirs = is_metadataset(read.node)
    if not theirs:
        refuse_given(click.get_current_context(), ("split", "mode"), "The recipe is no metadataset, which has them")
    mode = options["mode"] or ("val" if split.startswith(("val", "test")) else "train")
    functions = {} if options["trust"] else Unread()
    given: dict[str, Any] = {"trust": options["trust"], "follow_links": options["follow_links"]}
    given |= {"lanes": lanes} if theirs and lanes else {}
    data = open_recipe(read, functions=functions, split=split, mode=mode, seed=seed, **given)
    if not theirs and (is_stream(data) or is_lane_stream(data)):
        refuse_given(click.get_current_context(), ("seed", "lanes"), "The recipe has an order of its own")
    data = _ordered(data, (mode == "train") if theirs else seed is not None, seed, lanes)
    batch = {key: value for key, value in read.batch.items() if key in ("global_batch", "world")}
    return data, batch | {key: options[key] for key in ("global_batch", "world") if options[key] is not None}


def _no_recipe(given: str) -> FormatError | None:
    """The error for a dataset where a recipe must be; None for what may be one."""
    from penstock.store.place import place_of

    if given.lower().endswith(RECIPES) or not place_of(given).exists():
        return None
    name = given.rstrip("/").rpartition("/")[2]
    hint = f"A recipe of one dataset is a file with the line `path: {name}`; or look into it: `penstock find`, `head`"
    what = "a .yaml or .json file that describes a run"
    return FormatError("this is no recipe", path=given, expected=what, hint=hint)


def open_dataset_or_run(target: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """As `open_run`; what no recipe's name has is a dataset."""
    from penstock.formats import open_source

    if target.lower().endswith(RECIPES):
        return open_run(target, options)
    if options["mode"] is not None:
        raise click.UsageError("--mode is of metadatasets; a dataset is shuffled with --seed, else read once in order")
    context = click.get_current_context()
    said = context.get_parameter_source("split") is not click.core.ParameterSource.DEFAULT
    given = {"split": options["split"]} if said else {}
    data = open_source(target, trust=options["trust"], follow_links=options["follow_links"], **given)
    if options["lanes"] is not None and options["seed"] is None:
        raise click.UsageError("--lanes of a dataset needs --seed: without it, it is read once in order")
    data = _ordered(data, options["seed"] is not None, options["seed"], options["lanes"])
    return data, {key: options[key] for key in ("global_batch", "world") if options[key] is not None}


class Unread(dict[str, Any]):
    """Stands for every function that a recipe names: none of them runs when only indexes are read."""

    def get(self, name: str, default: Any = None) -> Any:
        """A function that refuses to be called; two where two are named."""
        both = tuple(None if one == "-" else _unread(one) for one in name.split(" "))
        return both if len(both) == 2 else both[0]


def _unread(name: str) -> Callable[..., NoReturn]:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise UnsafeData(
            "this needs a function of the recipe to run", found=name, hint="Pass --trust if you trust the recipe"
        )

    return refused


def _ordered(data: Any, is_shuffled: bool, seed: int | None, lanes: int | None) -> Any:
    from penstock._kinds import is_lane_stream, is_stream
    from penstock.order import Shuffle

    if is_stream(data) or is_lane_stream(data) or not is_shuffled:
        return data
    if not len(data):
        raise ConfigError("there is nothing to read", found="no sample")
    return Shuffle(data, seed or 0, lanes=lanes or 1)
