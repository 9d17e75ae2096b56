"""Opens recipes for commands: Energon's metadatasets and Penstock's recipes, with the flags that add to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from penstock.cli._energon import refuse_given
from penstock.cli._output import follow_links_option

Command = TypeVar("Command", bound=Callable[..., Any])


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
    from penstock.view.facts.opening import open_run as opened

    context = click.get_current_context()
    said = context.get_parameter_source("split") is not click.core.ParameterSource.DEFAULT
    taken = ("mode", "seed", "lanes", "global_batch", "world", "trust", "follow_links")
    given = {name: options[name] for name in taken} | ({"split": options["split"]} if said else {})
    found = opened(recipe, **given, refuse=lambda names, why: refuse_given(context, names, why))
    batch = {"global_batch": found.global_batch, "world": found.world}
    return found.data, {name: value for name, value in batch.items() if value is not None}


def open_dataset_or_run(target: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """As `open_run`; what no recipe's name has is a dataset."""
    from penstock.formats import open_source
    from penstock.view.facts.opening import is_recipe, ordered

    if is_recipe(target):
        return open_run(target, options)
    if options["mode"] is not None:
        raise click.UsageError("--mode is of metadatasets; a dataset is shuffled with --seed, else read once in order")
    context = click.get_current_context()
    said = context.get_parameter_source("split") is not click.core.ParameterSource.DEFAULT
    given = {"split": options["split"]} if said else {}
    data = open_source(target, trust=options["trust"], follow_links=options["follow_links"], **given)
    if options["lanes"] is not None and options["seed"] is None:
        raise click.UsageError("--lanes of a dataset needs --seed: without it, it is read once in order")
    data = ordered(data, shuffled=options["seed"] is not None, seed=options["seed"], lanes=options["lanes"])
    return data, {key: options[key] for key in ("global_batch", "world") if options[key] is not None}
