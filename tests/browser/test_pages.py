"""Every page as a person walks it: light and dark, small and wide, by keyboard and mouse."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from tests.browser.drive import errors, paint, requests, resize, viewer
from tests.smoke.made import MADE

PAGES = {
    "shelf": "",
    "overview-tokens": "d/stdlib.pbin/",
    "overview-tars": "d/pictures/",
    "overview-no-index": "d/no-index.jsonl/",
    "samples-text": "d/stdlib.jsonl/samples",
    "samples-pictures": "d/pictures/samples",
    "samples-sounds": "d/sounds/samples",
    "samples-rows": "d/rows/samples?start=900",
    "samples-odd": "d/odd.jsonl/samples",
    "samples-by-share": "d/no-index.jsonl/samples?at=73%25",
    "samples-empty": "d/empty.jsonl/samples",
    "sample": "d/pictures/sample/4",
    "sample-film": "d/sounds/sample/6",
    "tokens": "d/stdlib.pbin/tokens?index=3",
    "tokens-ids": "d/stdlib.pbin/tokens?index=3&ids=1",
    "tokens-none": "d/rows/tokens",
    "run": "r/run.yaml/",
    "step": "r/run.yaml/step?step=4",
    "window": "r/run.yaml/window?position=67",
    "two-steps": "r/run.yaml/compare?a=1&b=3",
    "reads": "r/run.yaml/reads?key=3",
    "find": "d/rows/find?text=weir",
    "health": "d/rows/health",
    "compare": "d/rows/compare?with=stdlib.jsonl",
}
FIRST_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
FIRST_BYTE = "const one = performance.getEntriesByType('navigation')[0]; return one.responseStart - one.requestStart"


def settle(driver: Any) -> None:
    """Wait for what the page fetches by itself, and for its plots."""
    WebDriverWait(driver, 30).until(lambda one: one.execute_script("return document.readyState") == "complete")
    WebDriverWait(driver, 30).until(
        lambda one: not one.find_elements(By.CSS_SELECTOR, ".busy, [data-scan]:not([data-stopped])")
    )
    time.sleep(0.15)


def require_quiet(driver: Any, url: str) -> None:
    """That the console is empty, and no other host was asked."""
    assert errors(driver) == []
    base = url.split("/", 3)[2]
    assert [one for one in requests(driver) if one.split("/")[2:3] != [base]] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440, 2560])
def test_every_page(width: int, theme: str, url: str, driver: Any, pictures: Path) -> None:
    paint(driver, theme)
    told: list[str] = []
    for name, path in PAGES.items():
        resize(driver, width)
        driver.get(url + path)
        settle(driver)
        wide = driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"{name} is {wide} pixels wider than {width}"
        height = driver.execute_script("return document.documentElement.scrollHeight")
        resize(driver, width, max(600, min(height, 1600)))
        driver.save_screenshot(str(pictures / f"{name}-{width}-{theme}.png"))
        told.append(f"{name}: first byte {driver.execute_script(FIRST_BYTE):.0f} ms, "
                    f"first paint {driver.execute_script(FIRST_PAINT) or 0:.0f} ms")  # fmt: skip
        require_quiet(driver, url)
    print("\n" + "\n".join(told))


ON_PAPER = (
    "shelf",
    "overview-tokens",
    "samples-text",
    "samples-pictures",
    "sample",
    "tokens",
    "run",
    "step",
    "two-steps",
)
PAPER_PX = 718
"""A4 without its margins."""


def test_on_paper(url: str, driver: Any, pictures: Path) -> None:
    """Nothing that is for hands alone, nothing wider than the paper, dark letters on white in a dark browser too."""
    for name in ON_PAPER:
        resize(driver, PAPER_PX)
        driver.get(url + PAGES[name])
        settle(driver)
        paint(driver, "dark", "print")
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        height = driver.execute_script("return document.documentElement.scrollHeight")
        resize(driver, PAPER_PX, max(600, min(height, 1600)))
        driver.save_screenshot(str(pictures / f"{name}-print.png"))
        shown = driver.execute_script(
            "return [...document.querySelectorAll('form, button, .tabs, .rail')].filter((one) => one.checkVisibility())"
            ".map((one) => one.outerHTML.slice(0, 80))"
        )
        ground = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        ink = driver.execute_script("return getComputedStyle(document.body).color")
        paint(driver, "light")
        assert wide <= PAPER_PX, f"{name} is {wide} pixels wide"
        assert shown == [], name
        assert (ground, ink) == ("rgb(255, 255, 255)", "rgb(28, 31, 34)"), name


def test_a_page_of_fifty_samples(url: str, driver: Any) -> None:
    resize(driver, 1440)
    times: list[float] = []
    for start in (0, 50, 100, 0):
        driver.get(f"{url}d/stdlib.jsonl/samples?start={start}")
        times.append(driver.execute_script(FIRST_BYTE))
    driver.get(f"{url}d/stdlib.pbin/")
    overview = driver.execute_script(FIRST_BYTE)
    print(f"\n50 samples: first byte {min(times):.0f} to {max(times):.0f} ms; overview: {overview:.0f} ms")
    require_quiet(driver, url)


def test_by_keys_alone(url: str, driver: Any) -> None:
    resize(driver, 1440)
    driver.get(f"{url}d/stdlib.jsonl/samples")
    settle(driver)
    keys = lambda text: ActionChains(driver).send_keys(text).perform()  # noqa: E731
    chosen = lambda: [one.get_attribute("id") for one in driver.find_elements(By.CSS_SELECTOR, "[data-item].on")]  # noqa: E731
    keys("jjj")
    assert chosen() == ["s2"]
    keys("k")
    assert chosen() == ["s1"]
    keys(Keys.ENTER)
    WebDriverWait(driver, 20).until(lambda one: "/sample/1" in one.current_url)
    keys("j")
    WebDriverWait(driver, 20).until(lambda one: "/sample/2" in one.current_url)
    keys("g")
    assert driver.switch_to.active_element.get_attribute("name") == "at"
    keys("75%" + Keys.ENTER)
    WebDriverWait(driver, 20).until(lambda one: "at=75" in one.current_url)
    assert driver.find_elements(By.ID, "s120")
    keys("?")
    assert driver.find_element(By.ID, "help").is_displayed()
    keys(Keys.ESCAPE)
    keys("2")
    WebDriverWait(driver, 20).until(lambda one: one.current_url.endswith("/d/stdlib.jsonl/"))
    keys("tt")
    assert driver.execute_script("return document.documentElement.dataset.theme") == "dark"
    keys("t")
    require_quiet(driver, url)


def test_a_list_goes_on(url: str, driver: Any) -> None:
    resize(driver, 1440)
    driver.get(f"{url}d/rows/samples")
    deadline = time.monotonic() + 60
    while not driver.find_elements(By.ID, "s900") and time.monotonic() < deadline:
        driver.execute_script("window.scrollTo(0, document.documentElement.scrollHeight)")
        time.sleep(0.05)
    assert driver.find_elements(By.ID, "s900")
    assert len(driver.find_elements(By.CSS_SELECTOR, "[data-item]")) <= 700, "what was scrolled away is let go"
    require_quiet(driver, url)


def test_the_rail_and_links_by_mouse(url: str, driver: Any) -> None:
    resize(driver, 1440)
    driver.get(f"{url}d/rows/samples")
    rail = driver.find_element(By.ID, "rail")
    ActionChains(driver).move_to_element(rail).click().perform()
    WebDriverWait(driver, 20).until(lambda one: "start=" in one.current_url)
    first = driver.find_element(By.CSS_SELECTOR, "[data-item]").get_attribute("id")
    assert 900 < int(str(first)[1:]) < 1100
    driver.find_element(By.CSS_SELECTOR, "[data-open]").click()
    WebDriverWait(driver, 20).until(lambda one: "/sample/" in one.current_url)
    link = driver.find_element(By.LINK_TEXT, "in run.yaml")
    link.click()
    WebDriverWait(driver, 30).until(
        lambda one: "doesn't read this dataset" in one.find_element(By.CSS_SELECTOR, ".answer").text
    )
    driver.get(f"{url}d/stdlib.pbin/sample/3")
    driver.find_element(By.LINK_TEXT, "in run.yaml").click()
    WebDriverWait(driver, 30).until(
        lambda one: one.find_elements(By.CSS_SELECTOR, ".answer .fault, .answer table a, .answer .empty")
    )
    require_quiet(driver, url)


def test_a_check_from_the_page(url: str, driver: Any) -> None:
    driver.get(f"{url}d/stdlib.pbin/health")
    driver.find_element(By.CSS_SELECTOR, "input[value=full]").click()
    driver.find_element(By.CSS_SELECTOR, ".check button").click()
    WebDriverWait(driver, 60).until(lambda one: one.find_elements(By.CSS_SELECTOR, ".sound"))
    require_quiet(driver, url)


def test_a_scan_is_stopped(url: str, driver: Any, shelf: Path) -> None:
    driver.get(f"{url}d/rows/find?text=weir")
    settle(driver)
    found = driver.find_elements(By.CSS_SELECTOR, ".hits a")
    assert len(found) == len([n for n in range(2000) if n % 8 == 2 or n * 5 % 8 == 2])
    require_quiet(driver, url)


def test_plots_have_their_tables(url: str, driver: Any) -> None:
    driver.get(f"{url}r/run.yaml/")
    settle(driver)
    plots = driver.find_elements(By.CSS_SELECTOR, ".plot")
    assert len(plots) == 3
    for plot in plots:
        assert plot.find_elements(By.CSS_SELECTOR, "canvas")
        assert not plot.find_element(By.CSS_SELECTOR, "table").is_displayed()
        fold = plot.find_element(By.CSS_SELECTOR, "summary")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", fold)
        fold.click()
        assert plot.find_element(By.CSS_SELECTOR, "details").get_attribute("open")
    ActionChains(driver).move_to_element(plots[0].find_element(By.CSS_SELECTOR, ".u-over")).perform()
    require_quiet(driver, url)


def test_without_script(url: str, driver: Any) -> None:
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(f"{url}d/stdlib.jsonl/samples")
        driver.find_element(By.PARTIAL_LINK_TEXT, "more of").click()
        assert "start=50" in driver.current_url
        driver.get(f"{url}d/stdlib.pbin/")
        assert driver.find_element(By.CSS_SELECTOR, ".plot table").is_displayed()
        driver.find_element(By.LINK_TEXT, "Health").click()
        driver.find_element(By.CSS_SELECTOR, ".check button").click()
        assert driver.current_url.endswith("/health")
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        driver.get("about:blank")  # without scripts, the page of a running check loads itself again and again


def test_every_format(tmp_path: Path, driver: Any, cache: Path) -> None:
    made = {name: make(tmp_path / name.replace("-", "_")) for name, make in _makers(tmp_path).items()}
    with viewer(*(one.path for one in made.values() if not one.options)) as url:
        driver.get(url)
        links = [one.get_attribute("href") for one in driver.find_elements(By.CSS_SELECTOR, "[data-open]")]
        assert len(links) >= 15, f"{driver.current_url}: {driver.page_source}"
        errors(driver), requests(driver)
        for link in links:
            for page in ("", "samples", "sample/0"):
                driver.get(link + page)
                assert not driver.find_elements(By.CSS_SELECTOR, "main > .fault"), link + page
        require_quiet(driver, url)


def _makers(folder: Path) -> dict[str, Any]:
    for name in MADE:
        (folder / name.replace("-", "_")).mkdir()
    return dict(MADE)


def test_hostile_data_run_nothing(tmp_path: Path, driver: Any, cache: Path) -> None:
    from tests.attacks.page_corpus import MARK, make_attacks

    make_attacks(tmp_path / "shelf")
    looked_at = 0
    errors(driver), requests(driver)
    with viewer(tmp_path / "shelf") as url:
        driver.get(url)
        links = [one.get_attribute("href") for one in driver.find_elements(By.CSS_SELECTOR, "[data-open]")]
        for link in links:
            pages = ["", "step", "window", "compare"] if "/r/" in link else ["", "samples?n=80", "samples?as=grid"]
            if "/d/" in link:
                pages += ["samples?as=table&n=80", "tokens", "find?text=script", "health", "compare"]
                pages += [f"sample/{number}" for number in range(0, 44, 3)]
                pages += [f"part/0/{part}" for part in ("svg", "html", "jpg", "png", "mp4", "json", "text")]
            for page in pages:
                driver.get(link + page)
                looked_at += 1
                driver.execute_script("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                state = f"return JSON.stringify([window.{MARK} ?? null, document.title, location.host])"
                mark, title, host = json.loads(driver.execute_script(state))
                assert mark is None, link + page
                assert title != MARK
                assert host == url.split("/")[2] or not host, link + page
        said = [one for one in errors(driver) if "Failed to load resource" not in one]
        assert said == []
        base = url.split("/")[2]
        assert [one for one in requests(driver) if one.split("/")[2:3] != [base]] == []
    assert looked_at > 60
