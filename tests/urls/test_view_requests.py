"""What pages of the viewer ask of a bucket, counted at n and 10 n."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.internals import Settings, Targets, make_app
from tests.store.objects import counted_requests
from tests.urls.test_requests import NAMES, make

PAGES = ("", "samples?n=10", "samples?n=10&at=73%25", "sample/3")


@pytest.mark.parametrize("format", ["pbin", "webdataset"])
def test_requests_of_a_page(format: str, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    requests = counted_requests(monkeypatch)
    counts: dict[int, list[int]] = {}
    for count in (20, 200):
        url = f"s3://bucket/viewed/{tmp_path.name}/{count}/{NAMES[format]}"
        make(url, format, count)
        app = make_app(Targets((url,), Settings()))
        client = TestClient(app, base_url="http://localhost")
        counts[count] = []
        for page in PAGES:
            requests.clear()
            assert client.get(f"/d/{NAMES[format]}/{page}").status_code == 200, page
            counts[count].append(len(requests))
        client.close()
        app.state.jobs.close()
    for few, many in zip(counts[20], counts[200], strict=True):
        assert many <= few + 12, counts
