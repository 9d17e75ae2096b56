"""The planes of documents that many workers convert: who makes the output visible writes them, from the source."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from penstock._planes import planes_of
from penstock.convert.documents import RUN_TOKENS
from penstock.convert.plan import TokenPlan
from penstock.formats import finish_planes, get_format
from penstock.formats._planed_writer import planes_beside, settle_planes
from penstock.formats._planes import EDGE_TOKENS


@contextlib.contextmanager
def planes_along(plan: TokenPlan) -> Generator[None]:
    """Write the planes of an output that the block makes visible: they are there before, and count with the tokens.

    Their bytes pass through this process. Memory: some 4 million values of each.
    """
    output, planes = plan.output, plan.output.planes
    if not planes:
        yield
        return
    store, path, chosen = output.place.store, output.place.path, get_format(output.dataset.format)
    finish_planes(chosen.name, store, path)
    joins = plan.how.is_distributed and plan.file_tokens is not None
    with planes_beside(chosen, store, path, planes, joins=joins) as files:
        source, total = plan.source, plan.source.num_tokens
        for start in range(0, total, RUN_TOKENS):
            stop = min(total, start + RUN_TOKENS)
            values = {name: one.read(start, stop) for name, one in planes_of(source).items()}
            files.write(files.as_stored(values, stop - start))
        edge = min(EDGE_TOKENS, total)
        files.publish(total, source.tokens(0, edge), source.tokens(total - edge, total))
        yield


def settle_again(plan: TokenPlan) -> None:
    """Let the planes of an output that is there count, where its writer was killed before it could."""
    if plan.output.planes:
        settle_planes(get_format(plan.output.dataset.format), plan.output.place.store, plan.output.place.path)
