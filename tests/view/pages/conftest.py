"""Pages of small datasets, asked for without a server."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.internals import Settings, Targets, make_app

GOLDEN = Path(__file__).parents[2] / "golden"
TOKENIZER = str(GOLDEN / "modalities" / "tokenizers" / "bpe2")

Ask = Callable[..., TestClient]


def text_of(page: str) -> str:
    """What a page says, without its marks; commands as a shell takes them."""
    return html.unescape(re.sub(r"<[^>]+>", "", page))


@pytest.fixture
def pages() -> Any:
    """Pages of these; what the server would hide is raised."""
    made: list[TestClient] = []

    def ask(*targets: object, **settings: Any) -> TestClient:
        app = make_app(Targets(tuple(map(str, targets)), Settings(**settings)))
        made.append(TestClient(app, base_url="http://localhost"))
        return made[-1]

    yield ask
    for client in made:
        client.app.state.jobs.close()  # type: ignore[attr-defined]
        client.close()
