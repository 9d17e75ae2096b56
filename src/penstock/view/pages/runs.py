"""Pages of runs: the mix, any step as the model gets it, a window token by token, two steps side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock._kinds import is_stream
from penstock.errors import ConfigError, PenstockError
from penstock.load.history import steps_until
from penstock.load.plan import once
from penstock.view import facts
from penstock.view.draw import sections
from penstock.view.draw.blocks import Fault, Section, to_json
from penstock.view.facts.batches import sample_of, window_tokens
from penstock.view.facts.opening import OpenedRun
from penstock.view.facts.places import of_dataset
from penstock.view.pages.patience import WAIT_SECONDS
from penstock.view.pages.site import answer, fault_of, number_of, root_of, site_of, target_of, text_of, with_query
from penstock.view.pages.targets import Target

SAMPLES = 16
_OF_A_RUN = (("plan", facts.plan_of), ("curves", facts.curves))
_TOKENS, _IN_STEP, _BESIDE = 1024, 256, 128


async def run(request: Request) -> Response:
    """Show the reads of a run: its mix, and each source over its steps."""
    target, steps = target_of(request), number_of(request, "steps", None, 1)
    asked, patience = asked_of(request), target.patience

    def ask_tree() -> Any:
        opened = opened_as(request, target, asked)
        return opened, facts.tree(opened)

    opened, tree = await patience.within(WAIT_SECONDS, ("tree", *asked), ask_tree)
    key = (steps, *asked)
    found: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, ask in (("plan", facts.plan_of),) if opened.global_batch is None else _OF_A_RUN:
        try:
            work = lambda ask=ask: ask(opened, steps)  # noqa: E731
            found[name] = await patience.within(WAIT_SECONDS, (name, *key), work)
        except (PenstockError, OSError) as error:
            title = "The plan of this run is unknown." if name == "plan" else None
            faults.append(dataclasses.replace(fault_of(error), title=title))
    plan, csv = found.get("plan"), f"{root_of(request)}r/{target.name}/curves.csv{with_query(request)}"
    top = [Section(None, faults), *([] if plan is None else [sections.plan(plan, requested=steps is not None)])]
    made = [sections.mix(tree), *([] if plan is None else [sections.plan_sources(plan)])]
    made += sections.over_steps(found["curves"], csv) if "curves" in found else []
    if text_of(request, "part") == "json":
        return JSONResponse(to_json([*top, *(one for one in made if one is not None)]))
    return answer(request, "run.html", target=target, tab="run", run=opened, plan=plan, steps=steps, top=top,
                  sections=[one for one in made if one is not None])  # fmt: skip


async def step(request: Request) -> Response:
    """Show a step: the samples of its batch, each with its origin."""
    target, asked = target_of(request), asked_of(request)
    number, rank = number_of(request, "step", 0) or 0, number_of(request, "rank")
    start = number_of(request, "start", 0) or 0

    if (opened := await _without_batch(request, target, asked)) is not None:
        return answer(request, "batch.html", target=target, tab="step", run=opened)

    def ask() -> Any:
        opened = opened_as(request, target, asked)
        batch = facts.batch(opened, number, rank, start=start, most=SAMPLES)
        return opened, batch, _last_step(opened), _strips(opened, batch, _IN_STEP)

    opened, batch, last, strips = await target.patience.within(WAIT_SECONDS, ("step", number, rank, start, *asked), ask)
    error = [] if batch.error is None else [Section(None, [Fault(batch.error)])]
    return answer(request, "step.html", target=target, tab="step", run=opened, batch=batch, step=number, rank=rank,
                  start=start, most=SAMPLES, last=last, strips=strips,
                  sections=[*error, *sections.batch(batch)])  # fmt: skip


async def window(request: Request) -> Response:
    """Show one sample of a run token by token, as the model gets it."""
    target, asked = target_of(request), asked_of(request)
    position, start = number_of(request, "position", 0) or 0, number_of(request, "start", 0) or 0

    def ask() -> Any:
        opened = opened_as(request, target, asked)
        sample = sample_of(opened, position)
        return opened, window_tokens(opened, position, sample, start=start, most=_TOKENS)

    opened, found = await target.patience.within(WAIT_SECONDS, ("window", position, start, *asked), ask)
    ids = text_of(request, "ids") is not None
    return answer(request, "tokens.html", target=target, tab="step", run=found, opened=opened, position=position,
                  split=None, index=None, count=None, step=_TOKENS, ids=ids)  # fmt: skip


async def reads(request: Request) -> Response:
    """Show the steps that read a sample of a dataset; `key`: of any dataset with this key or number."""
    target, asked, site = target_of(request), asked_of(request), site_of(request)
    index, split = number_of(request, "index"), text_of(request, "split")
    dataset = None if index is None else site.targets.named(text_of(request, "in") or "")
    key = text_of(request, "key") or "0"

    def ask() -> Any:
        opened = opened_as(request, target, asked)
        if dataset is None or index is None:
            return facts.reads_of(opened, key)
        return facts.reads_of(opened, of_dataset(site.targets.dataset(dataset, split), index))

    if text_of(request, "part") is None and (opened := await _without_batch(request, target, asked)) is not None:
        return answer(request, "batch.html", target=target, tab="step", run=opened)
    name = None if dataset is None else dataset.name
    found = await target.patience.within(WAIT_SECONDS, ("reads", name, index, split, key, *asked), ask)
    template = "_reads.html" if text_of(request, "part") else "reads.html"
    return answer(request, template, target=target, tab="step", found=found, dataset=dataset, index=index, key=key)


async def compare(request: Request) -> Response:
    """Show two steps, two ranks, or two runs side by side."""
    target, asked, site = target_of(request), asked_of(request), site_of(request)
    other = site.targets.named(text_of(request, "with") or target.name)
    if other.kind != "run":
        raise ConfigError("a run can only be compared with a run", found=other.title)
    steps = number_of(request, "a", 0) or 0, number_of(request, "b", 1) or 0
    ranks = number_of(request, "rank_a"), number_of(request, "rank_b")

    for which in (target, other):
        if (opened := await _without_batch(request, which, asked)) is not None:
            return answer(request, "batch.html", target=target, tab="steps", run=opened)

    def ask() -> Any:
        one, two = opened_as(request, target, asked), opened_as(request, other, asked)
        both = facts.compare_batches(one, steps[0], two, steps[1], *ranks, most=8)
        return both, _strips(one, both.a, _BESIDE), _strips(two, both.b, _BESIDE)

    key = ("compare", other.name, steps, ranks, *asked)
    found, strips_a, strips_b = await target.patience.within(WAIT_SECONDS, key, ask)
    others = [one for one in site.targets if one.kind == "run"]
    return answer(request, "steps.html", target=target, tab="steps", asked=asked, found=found, steps=steps,
                  sections=sections.two_batches(found, steps), ranks=ranks, other=other, others=others,
                  strips_a=strips_a, strips_b=strips_b)  # fmt: skip


def asked_of(request: Request) -> tuple[int | None, int | None]:
    """Return the batch size and world size in the query."""
    return number_of(request, "batch", None, 1), number_of(request, "world", None, 1)


def opened_as(request: Request, target: Target, asked: tuple[int | None, int | None]) -> OpenedRun:
    """Return the run with the requested batch and world size."""
    opened = site_of(request).targets.run(target)
    if asked[0] is not None and opened.state is not None:
        hint = "Remove batch from the URL"
        raise ConfigError("the state already records the batch size", found=f"batch={asked[0]}", hint=hint)
    given = {name: value for name, value in zip(("global_batch", "world"), asked, strict=True) if value is not None}
    return dataclasses.replace(opened, **given) if given else opened


async def _without_batch(request: Request, target: Target, asked: tuple[int | None, int | None]) -> OpenedRun | None:
    """Return the run if its batch size is unknown, so that the page asks for it; None otherwise."""
    work = lambda: opened_as(request, target, asked)  # noqa: E731
    opened = await target.patience.within(WAIT_SECONDS, ("shape", *asked), work)
    return opened if opened.global_batch is None else None


def _strips(opened: OpenedRun, batch: facts.BatchFacts, most: int) -> dict[int, facts.TokenRun]:
    """Return position → tokens, for samples of a batch that are token windows."""
    found: dict[int, facts.TokenRun] = {}
    for one in batch.samples:
        if any(panel.kind == "tokens" for panel in one.sample.panels):
            sample = sample_of(opened, one.origin.position)
            found[one.origin.position] = window_tokens(opened, one.origin.position, sample, most=most)
    return found


def _last_step(opened: OpenedRun) -> int:
    """Return the last step of the slider: of one pass the last one, else the one after which all was read once."""
    try:
        samples = once(opened.data) if is_stream(opened.data) else len(opened.data)
    except (PenstockError, TypeError):
        return 0
    return max(0, steps_until(opened.shape().history, samples) - 1)
