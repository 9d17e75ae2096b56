"""A conversion that writes nothing: it is refused for what the real one is refused for."""

from __future__ import annotations

from penstock.convert.asked import Asked
from penstock.convert.groups import SampleJob, write_rows
from penstock.convert.plan import TokenPlan
from penstock.convert.plan_samples import FIRST_SAMPLES, SamplePlan
from penstock.engine.token_files import held_folder
from penstock.errors import ConfigError
from penstock.formats import create_dry
from penstock.store.dry import dry_place


def rehearse(asked: Asked, plan: TokenPlan | SamplePlan) -> None:
    """Open the output in a store that writes nothing, and give it the first samples.

    Raises:
        ConfigError: what the conversion is refused for; or it is to be shared, or its samples come once.
    """
    if isinstance(plan, SamplePlan) and plan.given.rows is None:
        raise ConfigError("a dry run would consume samples from an iterator", hint="Save them as a dataset")
    if isinstance(plan, SamplePlan) and plan.is_grouped:
        SampleJob.of(plan, plan.output.place).rehearse()
    output = plan.output
    dry = dry_place(output.place)
    if isinstance(plan, TokenPlan) and plan.file_tokens:
        with held_folder(dry, overwrite=output.overwrite, shared=False):
            return
    writer = create_dry(output.dataset.format, dry.store, dry.path, output.options, overwrite=output.overwrite)
    try:
        if isinstance(plan, SamplePlan) and plan.given.rows is not None:
            stop = min(FIRST_SAMPLES, len(plan.given.rows))
            write_rows(enumerate(plan.given.rows.read(0, stop)), plan.maker, writer, output.dataset.format)
    finally:
        if writer is not None:
            writer.abort()
