"""Hostile data on pages stay text; a browser looks at the same in `make browser`."""

from __future__ import annotations

import html.parser

import pytest
from starlette.testclient import TestClient
from tests.attacks.page_corpus import MARK, make_attacks
from tests.internals import Settings, Targets, make_app

MAY = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "noscript",
        "body",
        "a",
        "header",
        "div",
        "img",
        "span",
        "form",
    ),
    *("label", "input", "kbd", "button", "svg", "circle", "path", "nav", "main", "h1", "h2", "h3", "h4", "small", "p"),
    *("strong", "dl", "dt", "dd", "details", "summary", "table", "thead", "tbody", "tr", "th", "td", "bdi", "code"),
    *(
        "section",
        "figure",
        "meter",
        "ul",
        "ol",
        "li",
        "pre",
        "output",
        "audio",
        "video",
        "progress",
        "fieldset",
        "legend",
    ),
    *("select", "option", "footer", "dialog", "i"),
}


class Elements(html.parser.HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("attacks") / "shelf"
    make_attacks(folder)
    return TestClient(make_app(Targets((str(folder),), Settings())), base_url="http://localhost")


def test_only_our_own_elements_are_there(client: TestClient) -> None:
    targets = list(client.app.state.site.targets)  # type: ignore[attr-defined]
    looked_at = 0
    for target in targets:
        pages = ["", "step", "window", "compare"] if target.kind == "run" else ["", "samples", "samples?as=list"]
        if target.kind == "dataset":
            pages += ["samples?as=grid", "samples?as=table", "sample/1", "sample/25", "tokens", "find?text=<script>"]
            pages += ["find?key=%22%3E%3Cscript%3E", "samples?at=%3Cscript%3E", "health", "compare"]
        for page in ["/", "/%3Cscript%3E", *(f"/{target.kind[0]}/{target.name}/{one}" for one in pages)]:
            answer = client.get(page)
            assert answer.headers["content-type"].startswith("text/html")
            parser = Elements()
            parser.feed(answer.text)
            looked_at += 1
            for tag, attributes in parser.found:
                assert tag in MAY, (page, tag)
                assert not [name for name in attributes if name.startswith(("on", "hx-on", "style"))], (page, tag)
                assert not str(attributes.get("href", "")).lower().startswith(("javascript:", "data:", "http:"))
                if tag == "script":
                    assert str(attributes["src"]).endswith((".js",))
    assert looked_at > 40


def test_parts_are_never_documents(client: TestClient) -> None:
    targets = [one for one in client.app.state.site.targets if one.title == "parts"]  # type: ignore[attr-defined]
    assert targets
    for part in ("svg", "html", "jpg", "png", "mp4", "json"):
        answer = client.get(f"/d/{targets[0].name}/part/0/{part}")
        assert answer.status_code == 200
        kind = answer.headers["content-type"]
        assert kind in ("application/octet-stream", "image/png", "video/mp4"), (part, kind)
        assert (kind == "application/octet-stream") == answer.headers["content-disposition"].startswith("attachment")
        assert MARK in answer.text
