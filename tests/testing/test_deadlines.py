"""A timing is never a test: no property has a deadline, whatever the machine is busy with."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import settings

TESTS = Path(__file__).parents[1]


def test_no_property_has_a_deadline() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    given = {match for path in TESTS.rglob("*.py") for match in re.findall(r"\bdeadline=([^,)\s]+)", path.read_text())}
    assert given == {"None"}
