"""The report: one file, the same bytes, bounded, without scripts; what it may replace."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.internals import chosen_for_report as chosen
from tests.internals import replace

import penstock as ps
from penstock.errors import ConfigError, FormatError, NotFound

Image = pytest.importorskip("PIL.Image")


def make_tokens(folder: Path) -> None:
    numbers = np.random.default_rng(3)
    for name, count in (("books", 60), ("web", 90)):
        with ps.create(folder / f"{name}.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
            for _ in range(count):
                writer.write({"tokens": np.append(numbers.integers(1, 400, numbers.integers(1, 90)), 0)})


def make_recipe(folder: Path) -> Path:
    if not (folder / "web.pbin").exists():
        make_tokens(folder)
    windows = {name: ps.Chunk(32, labels="shift")(ps.open(folder / f"{name}.pbin")) for name in ("books", "web")}
    stream = ps.Stages(
        [
            (80, ps.Blend(windows, {"books": 1, "web": 3}, seed=3)),
            (None, ps.Blend(windows, {"books": 3, "web": 1}, seed=4)),
        ]
    )
    (folder / "run.json").write_text(json.dumps(stream.recipe()))
    return folder / "run.json"


def picture(width: int = 40, height: int = 30, colour: tuple[int, int, int] = (200, 30, 40)) -> bytes:
    made = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(made, "PNG")
    return made.getvalue()


def require_one_file(page: str) -> None:
    """That a page has no script, and asks nothing of a network."""
    assert "<script" not in page.lower()
    assert not re.search(r"""(src|href|action)\s*=\s*["'](?!data:image/jpeg;base64,)""", page)
    assert not re.search(r"url\(|@import|javascript:", page)
    assert 'http-equiv="Content-Security-Policy"' in page
    assert "default-src &#x27;none&#x27;" in page
    assert not re.search(r"<[^>]+\son\w+\s*=", page)


def test_a_dataset(tmp_path: Path) -> None:
    make_tokens(tmp_path)
    found = ps.report(tmp_path / "books.pbin", tmp_path / "a.html", examples=5)
    page = (tmp_path / "a.html").read_text("utf-8")
    assert (found.kind, found.examples, found.size_bytes) == ("dataset", 5, len(page.encode()))
    require_one_file(page)
    assert "<svg" in page
    for word in ("60", "documents", "Lengths", "No findings", ps.open(tmp_path / "books.pbin").fingerprint):
        assert word in page


def test_bytes_depend_on_the_data_alone(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    for target, options in ((tmp_path / "books.pbin", {}), (recipe, {"global_batch": 8})):
        ps.report(target, tmp_path / "one.html", **options)
        ps.report(target, tmp_path / "another name.htm", **options)
        assert (tmp_path / "one.html").read_bytes() == (tmp_path / "another name.htm").read_bytes()
        (tmp_path / "one.html").unlink()
        (tmp_path / "another name.htm").unlink()


def test_a_run(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    found = ps.report(recipe, tmp_path / "run.html", global_batch=8, world=2, step=11, steps=20, examples=4)
    page = (tmp_path / "run.html").read_text("utf-8")
    require_one_file(page)
    assert found.kind == "run"
    for word in (
        "0/books",
        "1/web",
        "until sample 80",
        "The batch of step 11",
        "segment_ids",
        "in the loss",
        "epoch",
    ):
        assert word in page
    assert page.count("<polygon") == 4


def test_files_have_shares_of_the_total(tmp_path: Path) -> None:
    folder = tmp_path / "lines"
    folder.mkdir()
    for name, count in (("a", 1), ("b", 3)):
        (folder / f"{name}.jsonl").write_text('{"text": "a"}\n' * count)
    ps.report(folder, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    on_disk = page[page.index("On disk") :]
    assert re.findall(r"<meter[^>]*>([^<]+)</meter>", on_disk)[:2] == ["25.0%", "75.0%"]


def test_pictures_are_small(tmp_path: Path) -> None:
    noise = np.random.default_rng(1)
    with ps.create(tmp_path / "set", format="webdataset") as writer:
        for number in range(50):
            made = io.BytesIO()
            Image.fromarray(noise.integers(0, 256, (330, 320, 3), np.uint8)).save(made, "JPEG", quality=95)
            writer.write({"__key__": f"k{number:03}", "jpg": made.getvalue(), "txt": b"x" * 100_000})
    found = ps.report(tmp_path / "set", tmp_path / "set.html", examples=48)
    page = (tmp_path / "set.html").read_text("utf-8")
    require_one_file(page)
    assert page.count("data:image/jpeg;base64,") == 48
    assert found.size_bytes < 2_000_000


def test_what_data_say_is_shown(tmp_path: Path) -> None:
    evil = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'\u202e"
    (tmp_path / "a.jsonl").write_text(json.dumps({evil: evil, "list": [evil, {evil: evil}]}) + "\n", "utf-8")
    ps.report(tmp_path / "a.jsonl", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text("utf-8")
    require_one_file(page)
    assert "&lt;script&gt;alert(1)" in page
    assert "\u202e" not in page


def test_what_is_broken_has_its_place(tmp_path: Path) -> None:
    with ps.create(tmp_path / "set", format="webdataset") as writer:
        for number in range(4):
            writer.write({"__key__": f"k{number}", "png": picture()[: 20 if number == 1 else None], "json": b"{nope"})
    ps.report(tmp_path / "set", tmp_path / "set.html")
    page = (tmp_path / "set.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 3
    assert page.count('class="panel error"') == 5
    (tmp_path / "cut.pbin").write_bytes(b"\0" * 9)
    with pytest.raises(FormatError):
        ps.report(tmp_path / "cut.pbin", tmp_path / "cut.html", format="pbin")


def test_a_disk_that_fails_ends_the_report_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path)

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "a.pbin")

    replace(monkeypatch, "batch_sample_of", fail)
    with pytest.raises(PermissionError):
        ps.report(recipe, tmp_path / "out.html", global_batch=4)
    assert not (tmp_path / "out.html").exists()


def test_only_a_report_is_replaced(tmp_path: Path) -> None:
    make_tokens(tmp_path)
    target, page = tmp_path / "books.pbin", tmp_path / "a.html"
    ps.report(target, page)
    before = page.read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        ps.report(target, page)
    ps.report(target, page, overwrite=True)
    assert page.read_bytes() == before
    page.write_text("<!doctype html> a page of somebody's")
    with pytest.raises(ConfigError, match="is not a report"):
        ps.report(target, page, overwrite=True)
    target = target.rename(tmp_path / "books.html")
    kept = target.read_bytes()
    with pytest.raises(ConfigError, match="replace an input"):
        ps.report(target, target, overwrite=True, format="pbin")
    assert target.read_bytes() == kept
    target.rename(tmp_path / "books.pbin")
    recipe = make_recipe(tmp_path)
    web = (tmp_path / "web.pbin").rename(tmp_path / "web.html")
    (tmp_path / "web.pbin.penstock").rename(tmp_path / "web.html.penstock")
    recipe.write_text(recipe.read_text().replace("web.pbin", "web.html"))
    with pytest.raises(ConfigError, match="replace an input"):
        ps.report(recipe, web, overwrite=True, global_batch=4)


@pytest.mark.parametrize("name", ["a.pdf", "a.PDF", "a", "a.html.gz", "html", "books.pbin", "run.json"])
def test_a_page_is_called_as_one(tmp_path: Path, name: str) -> None:
    recipe = make_recipe(tmp_path)
    before = {one: one.read_bytes() for one in tmp_path.iterdir()}
    for target in (tmp_path / "books.pbin", recipe):
        with pytest.raises(ConfigError, match=r"\.html or \.htm.*print it"):
            ps.report(target, tmp_path / name, overwrite=True)
    assert {one: one.read_bytes() for one in tmp_path.iterdir()} == before
    ps.report(tmp_path / "books.pbin", tmp_path / "a.HTM")


def test_what_the_target_has_no_place_for(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    with pytest.raises(ConfigError, match="for datasets"):
        ps.report(recipe, tmp_path / "a.html", eos_id=4)
    for options in ({"seed": 3}, {"step": 4}, {"global_batch": 4}):
        with pytest.raises(ConfigError, match="for runs"):
            ps.report(tmp_path / "web.pbin", tmp_path / "a.html", **options)
    with pytest.raises(NotFound, match="tokenizer"):
        ps.report(tmp_path / "web.pbin", tmp_path / "a.html", tokenizer=str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match="too many"):
        ps.report(tmp_path / "web.pbin", tmp_path / "a.html", examples=10_000)
    assert not (tmp_path / "a.html").exists()


def test_examples_follow_from_the_data() -> None:
    assert chosen("f", 5, 12) == [0, 1, 2, 3, 4]
    first = chosen("f", 10**9, 12)
    assert first == sorted(set(first)) == chosen("f", 10**9, 12)
    assert len(first) == 12
    assert first != chosen("g", 10**9, 12)


def test_no_samples(tmp_path: Path) -> None:
    with ps.create(tmp_path / "none.pbin", format="pbin", token_bytes=2):
        pass
    (tmp_path / "none.jsonl").write_text("")
    for name, said in (("none.pbin", "no samples"), ("none.jsonl", "the file is empty")):
        ps.report(tmp_path / name, tmp_path / f"{name}.html")
        assert said in (tmp_path / f"{name}.html").read_text("utf-8")
