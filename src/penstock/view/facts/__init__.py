"""Plain data to display: of a dataset, its samples, a run and its batches; no HTML, no terminal.

The terminal, pages, reports and notebooks draw these facts. Everything is bounded. Values state how they were
determined and what was omitted, and errors are reported in the affected part only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._facade import facade

if TYPE_CHECKING:
    from penstock.view.facts.batches import BatchComparison as BatchComparison
    from penstock.view.facts.batches import BatchFacts as BatchFacts
    from penstock.view.facts.batches import batch as batch
    from penstock.view.facts.batches import compare_batches as compare_batches
    from penstock.view.facts.bounds import IN_FULL as IN_FULL
    from penstock.view.facts.bounds import IN_LIST as IN_LIST
    from penstock.view.facts.bounds import Bounds as Bounds
    from penstock.view.facts.bounds import Figure as Figure
    from penstock.view.facts.comparing import Comparison as Comparison
    from penstock.view.facts.comparing import compared as compared
    from penstock.view.facts.dataset import Overview as Overview
    from penstock.view.facts.dataset import overview as overview
    from penstock.view.facts.findings import Health as Health
    from penstock.view.facts.findings import health as health
    from penstock.view.facts.opening import Opened as Opened
    from penstock.view.facts.opening import OpenedRun as OpenedRun
    from penstock.view.facts.opening import is_recipe as is_recipe
    from penstock.view.facts.opening import open_run as open_run
    from penstock.view.facts.opening import open_target as open_target
    from penstock.view.facts.panel import Panel as Panel
    from penstock.view.facts.panel import Panels as Panels
    from penstock.view.facts.panel import panels as panels
    from penstock.view.facts.places import Location as Location
    from penstock.view.facts.places import location as location
    from penstock.view.facts.places import reads_of as reads_of
    from penstock.view.facts.run import Curves as Curves
    from penstock.view.facts.run import Node as Node
    from penstock.view.facts.run import Plan as Plan
    from penstock.view.facts.run import curves as curves
    from penstock.view.facts.run import plan_of as plan_of
    from penstock.view.facts.run import tree as tree
    from penstock.view.facts.samples import index_of as index_of
    from penstock.view.facts.samples import media_of as media_of
    from penstock.view.facts.samples import page as page
    from penstock.view.facts.samples import sample_at as sample_at
    from penstock.view.facts.shelves import Shelf as Shelf
    from penstock.view.facts.shelves import shelf as shelf
    from penstock.view.facts.token_run import TokenRun as TokenRun
    from penstock.view.facts.token_run import tokens as tokens

__getattr__, __dir__ = facade(__name__)
