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
        click.option("--trust", is_flag=True, help="Import functions that the recipe names, which runs their code."),
        click.option("--lanes", type=click.IntRange(1), help="Number of lanes, if the recipe doesn't set it."),
        click.option("--world", type=click.IntRange(1), help="Number of data-parallel ranks."),
        click.option("--seed", type=int, show_default="0", help="Seed of the order, if the recipe doesn't set it."),
        click.option("--global-batch", type=click.IntRange(1), help="Samples per step, over all ranks."),
        click.option(
            "--mode",
            type=click.Choice(["train", "val"]),
            show_default="val for splits named val… or test…, otherwise train",
            help="How to read a metadataset: shuffled and endless (train), or one pass in order (val).",
        ),
        click.option("--split", metavar="NAME", default="train", show_default=True, help="Split of a metadataset."),
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
    """Open a recipe as `open_run` does, or a dataset if `target` isn't named like a recipe."""
    from penstock.formats import open_source
    from penstock.view.facts.opening import is_recipe, ordered

    if is_recipe(target):
        return open_run(target, options)
    if options["mode"] is not None:
        raise click.UsageError(
            "--mode is for metadatasets; a dataset is shuffled with --seed, otherwise read once in order."
        )
    context = click.get_current_context()
    said = context.get_parameter_source("split") is not click.core.ParameterSource.DEFAULT
    given = {"split": options["split"]} if said else {}
    data = open_source(target, trust=options["trust"], follow_links=options["follow_links"], **given)
    if options["lanes"] is not None and options["seed"] is None:
        raise click.UsageError("--lanes needs --seed: without a seed, a dataset is read once in order.")
    data = ordered(data, shuffled=options["seed"] is not None, seed=options["seed"], lanes=options["lanes"])
    return data, {key: options[key] for key in ("global_batch", "world") if options[key] is not None}
