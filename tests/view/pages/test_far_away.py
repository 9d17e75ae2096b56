"""Data of each format on a web server and in an object store, through the same pages; and stores with faults."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.internals import current, place_of, replace, shelf
from tests.smoke.made import MADE, Made
from tests.view.pages.conftest import Ask, text_of

from penstock.errors import NotFound
from penstock.testing import FileServer

LISTED = ("jsonl-files",)
"""What a web server, which lists nothing, can't show."""
PAGES = ("samples", "samples?as=list", "samples?at=50%25", "sample/0", "tokens", "find?index=0", "health", "compare")


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def require_pages(client: TestClient, name: str) -> None:
    front = client.get("/")
    assert (front.status_code, name.partition("-")[0] in front.text, 'role="alert"' in front.text) == (200, True, False)
    here = f"/d/{name_of(client)}/"
    for page in PAGES:
        found = client.get(here + page)
        assert found.status_code == 200, (page, found.text)
        assert 'role="alert"' not in found.text, (page, found.text)
    assert "this sample" not in client.get(f"{here}sample/0").text


def name_of(client: TestClient) -> str:
    app: Any = client.app
    return next(iter(app.state.site.targets)).name


def made_in(folder: Path, name: str) -> tuple[Made, str]:
    """A dataset, and its path from the folder."""
    made = MADE[name](folder)
    return made, str(made.path.relative_to(folder))


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_format_in_an_object_store(name: str, tmp_path: Path, pages: Ask, s3_server: str) -> None:
    made, path = made_in(tmp_path, name)
    for file, data in files_of(tmp_path).items():
        place = place_of(f"s3://bucket/seen-{name}/{file}")
        out = place.store.stage(place.path)
        out.write(data)
        out.commit()
    require_pages(pages(f"s3://bucket/seen-{name}/{path}", **made.options), name)


def put(url: str, data: bytes) -> None:
    place = place_of(url)
    out = place.store.stage(place.path)
    out.write(data)
    out.commit()


def test_a_shelf_in_an_object_store(tmp_path: Path, pages: Ask, s3_server: str) -> None:
    """As the same folder on this machine, at the price of a listing of each folder."""
    for name in ("jsonl", "mds", "webdataset", "pbin", "parquet"):
        (tmp_path / "shelf" / name).mkdir(parents=True)
        MADE[name](tmp_path / "shelf" / name)
    (tmp_path / "shelf" / "notes.txt").write_text("nothing to see")
    (tmp_path / "shelf" / "run.yaml").write_text("penstock: 1\nstream: {path: jsonl/a.jsonl, shuffle: {seed: 5}}\n")
    for file, data in files_of(tmp_path / "shelf").items():
        put(f"s3://bucket/one-shelf/{file}", data)
    near, far = shelf(tmp_path / "shelf"), shelf("s3://bucket/one-shelf")
    kept = lambda found: [(one.path, one.format, one.samples, one.tokens) for one in found.datasets]  # noqa: E731
    assert kept(far) == kept(near)
    assert {one.format for one in far.datasets} == {"jsonl", "mds", "webdataset", "pbin", "parquet", "recipe"}
    client = pages("s3://bucket/one-shelf")
    front = client.get("/").text
    assert all(one.path in front for one in far.datasets)
    assert "line 0" in client.get("/d/jsonl-a.jsonl/samples").text
    with pytest.raises(NotFound):
        pages("s3://bucket/no-shelf")


def test_a_folder_of_a_store_that_is_slow_becomes_a_shelf(
    tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, plain = threading.Event(), current("open_view_target")
    replace(monkeypatch, "open_view_target", lambda *given, **how: (go.wait(60), plain(*given, **how))[1])
    replace(monkeypatch, "view_start_seconds", 0.05)
    for name in ("jsonl", "mds"):
        (tmp_path / "data" / name).mkdir(parents=True)
        MADE[name](tmp_path / "data" / name)
    try:
        client = pages(tmp_path / "data")
        assert client.get("/").status_code == 202
    finally:
        go.set()
    deadline = time.monotonic() + 20
    while "jsonl/a.jsonl" not in client.get("/").text:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("name", sorted(set(MADE) - {*LISTED, "folder"}))
def test_every_format_on_a_web_server(name: str, tmp_path: Path, pages: Ask) -> None:
    made, path = made_in(tmp_path, name)
    with FileServer(files_of(tmp_path)) as server:
        require_pages(pages(f"{server.url}/{path}", **made.options), name)


def test_what_a_web_server_does_not_list_says_so(tmp_path: Path, pages: Ask) -> None:
    _, path = made_in(tmp_path, "folder")
    with FileServer(files_of(tmp_path)) as server:
        client = pages(f"{server.url}/{path}")
        for page in ("", "samples", "sample/0", "find?text=1"):
            found = text_of(client.get(f"/d/{name_of(client)}/{page}").text)
            assert "a web server can't list its files" in found, page
            assert "penstock index" not in found, page


@pytest.mark.parametrize("fault", ["503", "403", "drop", "truncate"])
def test_a_store_that_fails_while_it_is_looked_at(
    fault: Any, tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page says what is wrong, and is whole again when the store is."""
    monkeypatch.setenv("PENSTOCK_REMOTE_TRIES", "1")
    _, path = made_in(tmp_path, "mds")
    with FileServer(files_of(tmp_path)) as server:
        client = pages(f"{server.url}/{path}")
        here = f"/d/{name_of(client)}/"
        assert client.get("/").status_code == 200
        server.always = fault
        for page in ("", "samples", "sample/0", "tokens", "find?text=1"):
            assert client.get(here + page).status_code in (200, 202, 400), page
        broken = client.get(f"{here}samples").text
        server.always = ""
        whole = client.get(f"{here}samples").text
        assert ("broken" in broken or 'role="alert"' in broken, "broken" in whole, 'role="alert"' in whole) == (
            True,
            False,
            False,
        )


def test_a_store_that_is_silent(tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the pages of its own dataset, which say so at once; those of others are there."""
    replace(monkeypatch, "view_start_seconds", 0.1)
    _, path = made_in(tmp_path, "mds")
    near = tmp_path / "near.jsonl"
    near.write_text(json.dumps({"text": "near"}) + "\n")
    with FileServer(files_of(tmp_path)) as server:
        server.always, server.hang_s = "hang", 60.0
        client = pages(f"{server.url}/{path}", near)
        name = name_of(client)
        assert [client.get(f"/d/{name}/{page}").status_code for page in ("", "samples", "sample/0")] == [202] * 3
        assert "near" in client.get("/d/near.jsonl/samples").text
        server.always = ""
        server.released.set()


def test_a_run_that_is_described_far_away(tmp_path: Path, pages: Ask) -> None:
    _, path = made_in(tmp_path, "pbin")
    (tmp_path / "run.yaml").write_text(
        "penstock: 1\nbatch: {global_batch: 2, world: 1}\n"
        f"stream: {{path: {path}, window: {{chunk: {{length: 2}}}}, shuffle: {{seed: 5}}}}\n"
    )
    with FileServer(files_of(tmp_path)) as server:
        client = pages(f"{server.url}/run.yaml")
        for page in (
            "",
            "r/run.yaml/",
            "r/run.yaml/step?step=1",
            "r/run.yaml/compare?a=0&b=1",
            "r/run.yaml/curves.csv",
        ):
            found = client.get(f"/{page}")
            assert (found.status_code, 'role="alert"' in found.text) == (200, False), (page, found.text)
