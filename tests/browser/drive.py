"""A viewer of its own process, and a browser that sees no other host than that."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


@contextlib.contextmanager
def viewer(*targets: str | Path, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of the first page of `penstock view`, which ends with 0 at SIGTERM."""
    command = [sys.executable, "-m", "penstock", "view", *map(str, targets), "--no-open", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert status == 0, f"the viewer ended with {status}"


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """A driver of a headless browser with an empty profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    os.environ["SE_OFFLINE"] = "true"
    profile = tempfile.mkdtemp(prefix="penstock-browser-")
    options = Options()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_page_load_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


def resize(driver: Any, width: int, height: int = 900) -> None:
    """The page, as wide as this."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def paint(driver: Any, theme: str, media: str = "") -> None:
    """Light or dark, as the system would have it; `media="print"` as on paper."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def errors(driver: Any) -> list[str]:
    """What the console said since this was last asked, but for what is only told."""
    return [one["message"] for one in driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]


def requests(driver: Any) -> list[str]:
    """The addresses that were asked for since this was last asked."""
    import json

    found = (json.loads(one["message"])["message"] for one in driver.get_log("performance"))
    sent = (one["params"]["request"]["url"] for one in found if one["method"] == "Network.requestWillBeSent")
    return [url for url in sent if url.startswith(("http:", "https:", "ws:", "wss:", "ftp:", "file:"))]
