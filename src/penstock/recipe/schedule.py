"""Blends with changing weights: stages of one blend, each of which continues its children after the last stage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import ConfigError
from penstock.mix import Blend, Stages
from penstock.order import Skip
from penstock.order.permutation import MAX_SIZE
from penstock.recipe.context import Context
from penstock.recipe.values import WEIGHT, check_value, number_of, unknown

_STEPS = re.compile(r"([1-9][0-9]{0,17}) steps?")
LENGTH: dict[str, Any] = {
    "anyOf": [{"type": ["integer", "null"], "minimum": 1}, {"type": "string", "pattern": f"^{_STEPS.pattern}$"}]
}
_STAGE = {
    "type": "object", "properties": {"length": LENGTH, "weights": {"type": "object", "additionalProperties": WEIGHT}},
    "required": ["weights"], "additionalProperties": False,
}  # fmt: skip
SCHEDULE: dict[str, Any] = {"type": ["array", "null"], "items": _STAGE, "minItems": 1}


def length_of(given: Any, context: Context, what: str) -> int | None:
    """Return the length of a stage in samples of all ranks; "N steps" are N steps of the recipe's batch size."""
    if not isinstance(given, str):
        return given
    found = _STEPS.fullmatch(given)
    if found is None:
        expected = "samples of all ranks (64000), or steps (2000 steps)"
        raise ConfigError(f"{what} is not a length", path=context.path, found=repr(given)[:80], expected=expected)
    if context.global_batch is None:
        hint = "Add batch: {global_batch: N} next to the stream, or give the length in samples"
        raise ConfigError(f"{what} is in steps, but the recipe has no global batch", path=context.path, hint=hint)
    return int(found[1]) * context.global_batch


def scheduled(context: Context, streams: Mapping[str, Any], node: Mapping[str, Any]) -> Stages:
    """Return the stages of a blend's schedule.

    Raises:
        ConfigError: there are weights next to the schedule, no seed, lanes, or weights that don't name each child.
    """
    what = f"{context.at or 'the recipe'}.schedule"
    seed, lanes, mixed = node.get("seed"), node.get("lanes") or 1, node.get("mixed_tokenizers", False)
    if any(number_of(one["weight"]) != 1 for one in node["children"]):
        hint = "Omit the weights of the children, or set each to 1"
        raise ConfigError(f"both {what} and the children have weights", path=context.path, hint=hint)
    if seed is None or lanes != 1:
        found = "no seed" if seed is None else f"lanes: {lanes}"
        raise ConfigError("a blend with a schedule needs a seed and exactly one lane", path=context.path, found=found)
    # The same seed for all children: a stage without a child doesn't change any order.
    ordered = Blend(streams, dict.fromkeys(streams, 1), seed, mixed_tokenizers=mixed).children()
    read = dict.fromkeys(streams, 0)
    stages: list[tuple[int | None, Any]] = []
    entries: Sequence[Mapping[str, Any]] = node["schedule"]
    for place, entry in enumerate(entries):
        weights = _weights(entry["weights"], streams, f"{what}[{place}].weights", context)
        left = {name: Skip(ordered[name], [(0, read[name])]) if read[name] else ordered[name] for name in weights}
        blend = Blend(left, weights, seed, mixed_tokenizers=mixed)
        length = length_of(entry.get("length"), context, f"{what}[{place}].length")
        if (length or 0) > MAX_SIZE:
            raise ConfigError(
                "the stages are too long", path=context.path, found=length, expected=f"at most {MAX_SIZE}"
            )
        stages.append((length, blend))
        for name, count in blend.reads(length or 0).items():
            read[name] += count
    return Stages(stages)


def _weights(given: Mapping[str, Any], names: Mapping[str, Any], what: str, context: Context) -> dict[str, Any]:
    for name in given:
        if name not in names:
            raise unknown(name, tuple(names), f"{what} is not a child of the blend", context.path)
    if missing := [name for name in names if name not in given]:
        hint = "use 0 to omit a child from a stage"
        raise ConfigError(f"{what} lacks {', '.join(missing)}", path=context.path, hint=hint)
    for name, weight in given.items():
        check_value(weight, WEIGHT, f"{what}.{name}", context.path)
    weights = {name: number_of(given[name]) for name in names}
    if not any(weights.values()):
        raise ConfigError(f"{what} is empty: all weights are 0", path=context.path)
    return {name: weight for name, weight in weights.items() if weight}
