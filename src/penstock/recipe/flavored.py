"""Sources with subflavors, which identify the dataset of a sample for functions over several datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.abc import Source
from penstock.node.over import ChangedView
from penstock.types import Sample, Schema

FIELD = "__subflavors__"


class Flavored(ChangedView):
    """Source that adds `subflavors` to samples, which override their own."""

    kind, title = "subflavors", "Subflavors"

    def __init__(self, source: Source[Sample], subflavors: Mapping[str, Any]) -> None:
        super().__init__(source)
        self.subflavors = dict(subflavors)

    def own(self) -> dict[str, Any]:
        return {"subflavors": self.subflavors}

    def shown(self) -> dict[str, Any]:
        return self.subflavors

    @property
    def schema(self) -> Schema:
        return Schema(self.source.schema.fields, open=True)

    def change(self, sample: Any, number: int) -> Any:
        if isinstance(sample, dict):
            return {**sample, FIELD: {**(sample.get(FIELD) or {}), **self.subflavors}}
        return sample
