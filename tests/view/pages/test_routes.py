"""Every page, over every format: it opens, it is whole, and it says what stands there."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.cli.called import called
from tests.smoke.made import MADE
from tests.view.pages.conftest import TOKENIZER, Ask, text_of

import penstock as ps
from penstock.errors import ConfigError
from penstock.view import facts
from penstock.view.facts.shelves import shelf as shelf_of

VENDORED = {
    "htmx-2.0.11.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx-LICENSE.txt": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
    "uplot-1.6.32.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-LICENSE.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
RECIPE = (
    "penstock: 1\nbatch: {global_batch: 4, world: 2}\n"
    "stream: {path: a.pbin, window: {chunk: {length: 8, labels: shift}}, shuffle: {seed: 5}}\n"
)
ROWS = [{"id": f"row{n}", "text": f"line {n}", "n": n} for n in range(120)]


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """Lines, tokens and a run over them."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    ps.index(tmp_path / "a.jsonl")
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
        for size in range(4, 40):
            writer.write({"tokens": np.array([*range(1, size), 0], "u2")})
    (tmp_path / "run.yaml").write_text(RECIPE)
    return tmp_path


def links(client: TestClient, path: str, page: str) -> set[str]:
    """Where a page leads to, without what is behind `?`."""
    found = re.findall(r'(?:href|src|hx-get|action)="([^"#]*)', page)
    return {urlsplit(urljoin(f"http://localhost{path}", html.unescape(one))).path for one in found}


def kind_of(path: str) -> str:
    return re.sub(r"/\d+", "/N", path)


def walk(client: TestClient, start: str = "/") -> Iterator[tuple[str, str]]:
    """Pages that are reached by plain links, one of each kind."""
    seen, waiting, kinds = {start}, [start], set[str]()
    while waiting:
        path = waiting.pop(0)
        if kind_of(path) in kinds:
            continue
        kinds.add(kind_of(path))
        answer = client.get(path)
        assert answer.status_code == 200, path
        if answer.headers["content-type"].startswith("text/html"):
            yield path, answer.text
            new = sorted(links(client, path, answer.text) - seen)
            seen |= set(new)
            waiting += [one for one in new if not one.endswith(("/start", "/stop"))]


@pytest.mark.parametrize("name", sorted(MADE))
def test_every_format(name: str, tmp_path: Path, pages: Ask) -> None:
    made = MADE[name](tmp_path)
    client = pages(made.path, **made.options, **({"format": name} if made.options else {}))
    front = client.get("/").text
    assert name.partition("-")[0] in front
    assert 'role="alert"' not in front
    here = f"/d/{next(iter(client.app.state.site.targets)).name}/"  # type: ignore[attr-defined]
    for page in ("samples", "samples?as=list", "sample/0", "tokens", "find?text=1", "health", "compare"):
        found = client.get(here + page)
        assert found.status_code == 200, (page, found.text)
        assert found.text.rstrip().endswith("</html>")
    shown = client.get(f"{here}sample/0").text
    assert "this sample" not in shown, shown


def test_plain_links_lead_everywhere(shelf: Path, pages: Ask) -> None:
    client = pages(shelf, tokenizer=TOKENIZER)
    found = dict(walk(client))
    kinds = set(map(kind_of, found))
    assert {
        f"/d/a.jsonl/{page}" for page in ("", "samples", "sample/N", "tokens", "find", "health", "compare")
    } <= kinds
    assert {f"/r/run.yaml/{page}" for page in ("", "step", "window", "compare")} <= kinds
    assert not [path for path, page in found.items() if "://" in "".join(re.findall(r'(?:href|src)="([^"]*)', page))]


def test_what_has_no_side_file_is_explained_once(shelf: Path, pages: Ask) -> None:
    for name in ("b", "c"):
        (shelf / f"{name}.jsonl").write_text('{"text": "one"}\n')
    page = pages(shelf).get("/shelf").text
    assert page.count("no side file</p>") >= 2
    assert page.count("silent corruption can't be detected") == 1


def test_samples_by_index_share_and_key(shelf: Path, pages: Ask) -> None:
    client = pages(shelf / "a.jsonl")
    assert "line 90" in client.get("/d/a.jsonl/samples?at=75%").text
    assert 'id="s60"' in client.get("/d/a.jsonl/samples?at=60").text
    assert "no key index" in client.get("/d/a.jsonl/samples?at=row7").text
    rows = client.get("/d/a.jsonl/samples?start=50&part=rows").text
    assert "<html" not in rows
    assert 'id="s50"' in rows
    assert 'id="s49"' not in rows


def test_a_scan_goes_on_where_it_ended(tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.view.pages.work._SCAN_SECONDS", 0.0)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(1000)))
    client = pages(tmp_path / "a.jsonl")
    hits, path = [], "/d/a.jsonl/find?text=9"
    looks = 0
    while path:
        page = client.get(path).text
        looks += 1
        hits += [int(one) for one in re.findall(r'sample/(\d+)" data-open', page)]
        on = re.search(r'href="(\?[^"]*)" data-on', page)
        path = f"/d/a.jsonl/find{html.unescape(on[1])}" if on else ""
    assert looks > 2
    assert hits == [n for n in range(1000) if "9" in str(n)]


def test_hits_show_what_was_found(shelf: Path, pages: Ask) -> None:
    rows = [{"a": {"b": "<i>" + "x" * 90 + " the Weir of " + "y" * 90}, "url": f"k{n}"} for n in range(60)]
    (shelf / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = pages(shelf / "b.jsonl").get("/d/b.jsonl/find?text=Weir").text
    assert page.count('<span class="k">a.b</span>') == page.count('the <i class="match">Weir</i> of') == 50
    assert "…x" in page
    assert "&lt;i&gt;" not in page, "only what stands around it"
    assert page.count("data-open") == 60
    client = pages(shelf / "a.jsonl")
    assert ">row7<" in client.get("/d/a.jsonl/find?where=n+==+7").text
    tokens = pages(shelf / "a.pbin", tokenizer=TOKENIZER)
    assert 'class="match"' in tokens.get("/d/a.pbin/find?text=%22").text


def test_options_of_one_dataset(shelf: Path, pages: Ask) -> None:
    np.arange(1, 30, dtype="<u2").tofile(shelf / "raw ids.bin")
    client = pages(shelf / "raw ids.bin", format="raw-tokens", layout="uint16", eos_id=9)
    sample = text_of(client.get("/d/raw-ids.bin/sample/1").text)
    assert (
        f"penstock head '{shelf}/raw ids.bin' --format raw-tokens --layout uint16 --eos-id 9 --index 1 --pictures"
        in sample
    )
    for given in ((shelf / "a.pbin", shelf / "a.jsonl"), (shelf,), (shelf / "run.yaml",)):
        with pytest.raises(ConfigError, match="one dataset"):
            pages(*given, eos_id=9)


def test_a_jsonl_by_energons_rules(tmp_path: Path, pages: Ask) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n\n{"text": "two"}\n')
    ps.index(path, flavor="energon")
    client = pages(path, flavor="energon")
    assert "Samples <small>2</small>" in client.get("/d/a.jsonl/samples").text
    sample = text_of(client.get("/d/a.jsonl/sample/1").text)
    assert f"penstock head {path} --flavor energon --index 1 --pictures" in sample
    assert "two" in sample
    assert f"penstock verify {path} --depth full" in text_of(client.get("/").text)


def test_a_flavor_is_that_of_a_jsonl(shelf: Path) -> None:
    with pytest.raises(ConfigError, match="flavor"):
        facts.open_target(shelf / "a.pbin", flavor="energon")


def test_commands_that_are_shown_open_the_data_as_the_page_does(shelf: Path, pages: Ask) -> None:
    np.arange(1, 30, dtype="<u2").tofile(shelf / "raw.bin")
    client = pages(shelf / "raw.bin", format="raw-tokens", layout="uint16", eos_id=9)
    shown = [text_of(one) for one in re.findall(r'class="command">(.*?)</code>', client.get("/").text)]
    for line in shown:
        assert called(*shlex.split(line)[1:]).returncode == 0, line
    assert len(shown) == 2


def test_the_side_file_of_tars(tmp_path: Path, pages: Ask) -> None:
    """It lies in their folder; and an empty file is no file whose samples are not known."""
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        writer.write({"__key__": "one", "txt": b"text"})
    (tmp_path / "empty.jsonl").touch()
    with ps.create(tmp_path / "texts", format="folder") as writer:
        writer.write({"__key__": "a.txt", "txt": b"text"})
    found = {one.path: one for one in shelf_of(tmp_path).datasets}
    assert found["tars"].warnings == ()
    assert (found["texts"].format, found["texts"].samples) == ("folder", 1)
    assert (found["tars"].size_bytes or 0) > 10_000
    assert (found["empty.jsonl"].samples, found["empty.jsonl"].warnings) == (0, ("empty",))
    page = pages(tmp_path / "tars").get("/").text
    assert "silent corruption can't be detected" not in page
    (tmp_path / "tars" / ".penstock").unlink()
    assert "silent corruption can't be detected" in pages(tmp_path / "tars").get("/").text


def test_tokens_of_nothing(tmp_path: Path, pages: Ask) -> None:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2, eos_id=0):
        pass
    page = pages(tmp_path / "a.pbin").get("/d/a.pbin/tokens")
    assert (page.status_code, "the dataset has no samples" in page.text) == (200, True)


def test_figures_of_a_run_are_saved_as_they_are_shown(shelf: Path, pages: Ask) -> None:
    """With as many samples a step, and ranks, as the page was asked for; so are links from a step to another."""
    client = pages(shelf / "run.yaml")
    page = client.get("/r/run.yaml/?batch=2&world=1&steps=7").text
    link = re.search(r'href="[^"]*(curves.csv[^"]*)"', page)
    assert link is not None
    rows = client.get("/r/run.yaml/" + html.unescape(link[1])).text.splitlines()
    assert rows != client.get("/r/run.yaml/curves.csv?steps=7").text.splitlines()
    step = client.get("/r/run.yaml/step?step=3&batch=2&world=1&rank=0").text
    other = re.search(r'href="[^"]*(compare\?[^"]*)">Compare', step)
    assert other is not None
    expected = {"batch=2", "world=1", "a=3", "b=4", "rank_a=0", "rank_b=0"}
    assert set(html.unescape(other[1]).partition("?")[2].split("&")) == expected
    assert 'name="batch" value="2"' in client.get("/r/run.yaml/" + html.unescape(other[1])).text


def test_a_split_is_compared_with_the_same_split(tmp_path: Path, pages: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        for split, text in (("train", name), ("val", "same")):
            with ps.create(tmp_path / name / split, format="mds", columns={"text": "str"}) as writer:
                writer.write({"text": text})
    client = pages(tmp_path / "a", tmp_path / "b", split="val")
    started: list[list[str]] = []
    jobs = client.app.state.jobs  # type: ignore[attr-defined]
    monkeypatch.setattr(jobs, "start", lambda _name, arguments: started.append(arguments))
    token = re.search(r'name="token" value="([^"]+)"', client.get("/d/a/compare").text)
    assert token is not None
    client.post("/d/a/compare/start", data={"with": "b", "as": "sequence", "token": token[1]})
    assert called(*started[0]).returncode == 0


def test_what_was_checked_stands_on_the_shelf(shelf: Path, pages: Ask) -> None:
    client = pages(shelf)
    assert "last check" not in client.get("/").text
    (shelf / "a.pbin").write_bytes((shelf / "a.pbin").read_bytes()[:-20] + b"x" * 20)
    token = re.search(r'name="token" value="([^"]+)"', client.get("/d/a.pbin/health").text)
    assert token is not None
    client.post("/d/a.pbin/health/start", data={"depth": "full", "token": token[1]})
    deadline = time.monotonic() + 60
    while "Checking" in client.get("/d/a.pbin/health").text and time.monotonic() < deadline:
        time.sleep(0.1)
    assert re.search(r'/health">[1-9]\d* errors?, \d+ warnings?</a>', client.get("/").text)


def test_find_by_the_others(shelf: Path, pages: Ask) -> None:
    client = pages(shelf / "a.jsonl")
    assert 'sample/7"' in client.get("/d/a.jsonl/find?key=row7").text
    assert 'sample/8"' in client.get("/d/a.jsonl/find?where=n+==+8").text
    assert 'sample/60"' in client.get("/d/a.jsonl/find?index=50%25").text
    assert 'role="alert"' in client.get("/d/a.jsonl/find?where=n+%3D%3D").text


def test_a_check_is_started_and_told(shelf: Path, pages: Ask) -> None:
    (shelf / "a.pbin").write_bytes((shelf / "a.pbin").read_bytes()[:-20] + b"x" * 20)
    client = pages(shelf / "a.pbin")
    page = client.get("/d/a.pbin/health").text
    token = re.search(r'name="token" value="([^"]+)"', page)
    assert token is not None
    assert client.post("/d/a.pbin/health/start", data={"depth": "full", "token": "wrong"}).status_code == 400
    client.post("/d/a.pbin/health/start", data={"depth": "full", "token": token[1]})
    deadline = time.monotonic() + 60
    while "Checking" in (page := client.get("/d/a.pbin/health").text) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "error" in page
    assert "pbin." in page


def test_two_are_compared(shelf: Path, pages: Ask) -> None:
    other = [row | {"text": "another"} if row["n"] == 5 else row for row in ROWS]
    (shelf / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    client = pages(shelf / "a.jsonl", shelf / "b.jsonl")
    page = client.get("/d/a.jsonl/compare").text
    token = re.search(r'name="token" value="([^"]+)"', page)
    assert token is not None
    client.post("/d/a.jsonl/compare/start", data={"with": "b.jsonl", "as": "sequence", "token": token[1]})
    deadline = time.monotonic() + 60
    while "Comparing" in (page := client.get("/d/a.jsonl/compare?with=b.jsonl").text) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "First differences" in page
    assert "another" in page


def test_a_run(shelf: Path, pages: Ask) -> None:
    client = pages(shelf / "run.yaml", tokenizer=TOKENIZER)
    assert "a.pbin" in client.get("/").text
    step = client.get("/r/run.yaml/step?step=3&rank=1").text
    assert "rank 1 of 2" in step
    assert 'class="token seg1' in step
    window = client.get("/r/run.yaml/window?position=5").text
    assert re.search(r"\d in the loss", window)
    assert "the mask is shown on the token to predict" in window
    assert "in both" in client.get("/r/run.yaml/compare?a=0&b=1").text
    rows = client.get("/r/run.yaml/curves.csv").text.splitlines()
    assert rows[0] == "step,source,samples,epochs,tokens,share"
    assert len(rows) > 2


def test_csv_of_each_plot(shelf: Path, pages: Ask) -> None:
    client = pages(shelf / "a.pbin")
    rows = [line.split(",") for line in client.get("/d/a.pbin/lengths.csv").text.splitlines()]
    assert rows[0] == ["from_tokens", "to_tokens", "samples"]
    assert sum(int(row[2]) for row in rows[1:]) == 36
    page = client.get("/").text
    table = page.partition('data-plot="bars"')[2].partition("</table>")[0]
    assert [int(one) for one in re.findall(r'data-v="(\d+)"', table)] == [int(one) for row in rows[1:] for one in row]


def test_what_is_vendored_is_what_was_published() -> None:
    folder = resources.files("penstock.view.pages") / "static" / "vendor"
    assert {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in folder.iterdir()} == VENDORED


def test_when_a_sample_is_read_is_told_of_its_own_dataset(tmp_path: Path, pages: Ask) -> None:
    for name, sizes in (("a", range(4, 40)), ("b", range(3, 30))):
        with ps.create(tmp_path / f"{name}.pbin", format="pbin", token_bytes=2, eos_id=0) as writer:
            for size in sizes:
                writer.write({"tokens": np.array([*range(1, size), 0], "u2")})
    with ps.create(tmp_path / "t", format="webdataset") as writer:
        for number in range(6):
            writer.write({"__key__": f"k{number}", "txt": b"x"})
    windows = ps.Chunk(8, labels="shift")
    joined = ps.Concat([ps.open(tmp_path / "a.pbin"), ps.open(tmp_path / "b.pbin")])
    runs = {
        "both": "penstock: 1\nbatch: {global_batch: 4}\n"
        "stream: {blend: [{path: a.pbin, weight: 1}, {path: b.pbin, weight: 1}],\n"
        "  window: {chunk: {length: 8, labels: shift}}, seed: 5}\n",
        "tars": "penstock: 1\nbatch: {global_batch: 4}\nstream: {path: t, shuffle: {seed: 5}}\n",
        "joined": json.dumps(ps.Shuffle(windows(joined), seed=3).recipe()),
    }
    for name, text in runs.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    client = pages(tmp_path)
    for dataset in ("a.pbin", "b.pbin", "t"):
        page = client.get(f"/d/{dataset}/sample/2").text
        there = [html.unescape(one) for one in re.findall(r'href="([^"]*reads[^"]*)"', page)]
        assert len(there) == len(runs)
        for link in there:
            address = urljoin(f"http://localhost/d/{dataset}/sample/2", link)
            answer = client.get(address)
            if "joined" in address:  # its recipe has no batch size
                assert "--global-batch" in answer.text
                answer = client.get(f"{address}&batch=3")
            assert answer.status_code == 200
            run = re.search(r"/r/([a-z]+)\.yaml/", address)
            assert run is not None
            if (run[1] == "tars") != (dataset == "t"):
                assert "doesn't read this dataset" in answer.text
                continue
            steps = [int(one) for one in re.findall(r"step\?step=(\d+)", answer.text)]
            stream = ps.open_recipe(tmp_path / f"{run[1]}.yaml")
            size = 3 if run[1] == "joined" else 4
            wanted = [
                one // size for one in range(size * (max(steps) + 1)) if reads(stream, one, tmp_path / dataset, 2)
            ]
            assert steps == wanted


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "br"])
def test_no_shell_command_reads_a_compressed_shard(tmp_path: Path, pages: Ask, compression: str | None) -> None:
    with ps.create(tmp_path / "mds", format="mds", columns={"text": "str"}, compression=compression) as writer:
        writer.write({"text": "one"})
    page = text_of(pages(tmp_path / "mds").get("/d/mds/sample/0").text)
    assert ("tail -c" in page) == (compression is None)


def position_counts(page: str) -> list[int]:
    """Positions of the samples that a step's page shows."""
    return [int(one) for one in re.findall(r'window\?position=(\d+)" data-open', page)]


def test_a_batch_size_is_never_assumed(shelf: Path, pages: Ask) -> None:
    recipe = shelf / "plain.yaml"
    recipe.write_text(RECIPE.replace("batch: {global_batch: 4, world: 2}\n", ""))
    client = pages(recipe)
    for page in ("step", "step?step=3&rank=0", "compare?a=1&b=2", "reads?key=2"):
        asked = client.get(f"/r/plain.yaml/{page}").text
        assert "Batch size" in asked
        assert set(re.findall(r'type="hidden" name="(\w+)"', asked)) == set(re.findall(r"(\w+)=", page))
    mix = client.get("/r/plain.yaml/").text
    assert "enter a batch size to see steps" in mix
    assert "512" not in mix
    assert position_counts(client.get("/r/plain.yaml/step?step=2&batch=3").text) == [6, 7, 8]
    assert position_counts(pages(recipe, global_batch=5).get("/r/plain.yaml/step?step=1").text) == [5, 6, 7, 8, 9]
    with pytest.raises(ConfigError, match="--global-batch"):
        ps.report(recipe, shelf / "out.html")
    with pytest.raises(ConfigError, match="no recipe"):
        pages(shelf / "a.pbin", global_batch=5)


def test_steps_of_a_state_have_its_batch_sizes(shelf: Path, pages: Ask) -> None:
    """Two steps of 4 samples, then steps of 6: step 0 is [0, 4), step 2 is [8, 14), step 3 is [14, 20)."""
    stream: Any = ps.open_recipe(shelf / "run.yaml")
    loader = ps.Loader(stream, global_batch=4, rank=0, world=1, workers=0)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    other = ps.Loader(stream, global_batch=6, rank=0, world=1, workers=0)
    other.load_state_dict(loader.state_dict())
    next(iter(other))
    state = shelf / "state.json"
    state.write_text(json.dumps(other.state_dict()))
    client = pages(shelf / "run.yaml", state=str(state))
    for step, positions in ((0, range(4)), (2, range(8, 14)), (3, range(14, 20))):
        assert position_counts(client.get(f"/r/run.yaml/step?step={step}").text) == list(positions)
    assert client.get("/r/run.yaml/").status_code == 200
    assert client.get("/r/run.yaml/step?step=1&batch=9").status_code == 400
    ps.report(shelf / "run.yaml", shelf / "out.html", state=state, step=2)
    shown = (shelf / "out.html").read_text()
    assert [int(one) for one in re.findall(r">position (\d+)<", shown)] == list(range(8, 14))
    with pytest.raises(ConfigError, match="--state"):
        ps.report(shelf / "run.yaml", shelf / "b.html", state=state, global_batch=3)


@pytest.mark.parametrize("command", ["explain", "report", "view"])
def test_help_says_that_steps_count_from_zero(command: str) -> None:
    shown = " ".join(called(command, "--help").stdout.split())
    assert "from 0" in shown


def reads(stream: ps.Stream, position: int, dataset: Path, index: int) -> bool:
    """Whether a position reads bytes of a sample, by the files and bytes of both."""
    [mine] = ps.open(dataset).place_of(index).extents  # type: ignore[attr-defined]
    begin, end = mine.offset_bytes, mine.offset_bytes + mine.length_bytes
    found = stream.locate(position).extents or ()
    return any(
        one.path == mine.path and one.offset_bytes < end and one.offset_bytes + one.length_bytes > begin
        for one in found
    )


def test_folders_that_might_be_splits_are_a_shelf(tmp_path: Path, pages: Ask) -> None:
    for name in ("rows", "texts"):
        with ps.create(tmp_path / "both" / name, format="mds", columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    page = pages(tmp_path / "both").get("/").text
    assert all(f"/d/{name}/" in page for name in ("rows", "texts"))


def test_a_picture_does_not_make_a_dataset_of_a_shelf(tmp_path: Path, pages: Ask) -> None:
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "one.jpg").write_bytes(b"\xff\xd8\xff")
    with ps.create(tmp_path / "tars", format="webdataset") as writer:
        writer.write({"__key__": "a", "txt": b"x"})
    (tmp_path / "notes.json").write_text('{"loss": [1, 2]}')
    (tmp_path / "run.json").write_text(json.dumps(ps.Shuffle(ps.open(tmp_path / "tars"), seed=1).recipe()))
    client = pages(tmp_path)
    targets = client.app.state.site.targets  # type: ignore[attr-defined]
    rows: dict[str, Any] = {one.title: targets.described().get(one.name) for one in targets}
    assert set(rows) == {tmp_path.name, "more", "run.json", "tars"}
    assert rows[tmp_path.name].format == rows["more"].format == "folder"
    assert rows["tars"].samples == 1
    assert client.get(f"/d/{tmp_path.name[:40]}/samples").status_code == 200


def test_tars_that_nobody_prepared_are_one_thing_on_a_shelf(shelf: Path, pages: Ask) -> None:
    with ps.create(shelf / "tars", format="webdataset", maxcount=1) as writer:
        for name in "ab":
            writer.write({"__key__": name, "txt": b"x"})
    shutil.rmtree(shelf / "tars" / ".nv-meta")
    page = text_of(pages(shelf).get("/").text)
    assert page.count("this folder isn't prepared") == 1
    assert "tars/" not in page


def test_a_page_says_that_its_tokenizer_is_another(tmp_path: Path, pages: Ask) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "the water of the mill"}\n' * 9)
    ps.pack(tmp_path / "a.jsonl", tmp_path / "a.pbin", tokenizer=TOKENIZER, executor="inline")
    (tmp_path / "run.yaml").write_text(RECIPE)
    addresses = ("/d/a.pbin/samples", "/d/a.pbin/sample/0", "/d/a.pbin/tokens", "/r/run.yaml/step")
    for tokenizer, is_other in ((TOKENIZER, False), (str(Path(TOKENIZER).parent / "small1"), True)):
        client = pages(tmp_path, tokenizer=tokenizer)
        for address in addresses:
            assert ("but are shown as text with " in client.get(address).text) is is_other, (address, tokenizer)
    assert pages(tmp_path, tokenizer=str(tmp_path / "none")).get("/d/a.pbin/tokens").status_code == 404


def test_an_overview_says_which_split_it_is_of(tmp_path: Path, pages: Ask) -> None:
    with ps.create(tmp_path / "tars", format="webdataset", maxcount=2) as writer:
        for number in range(10):
            writer.write({"__key__": f"k{number}", "txt": b"x"})
    ps.prepare(tmp_path / "tars", split_ratio=(3, 1, 1), overwrite=True)
    client = pages(tmp_path / "tars")
    page = text_of(client.get("/").text)
    assert "split train" in page
    assert "size of all splits" in page
    other = text_of(client.get("/d/tars/?split=val").text)
    assert "split val" in other
    assert other.count("shown here") == page.count("shown here") == 1


def test_a_shelf_says_what_became_of_its_datasets(shelf: Path, pages: Ask) -> None:
    client = pages(shelf)
    before = text_of(client.get("/").text)
    assert "no longer there" not in before
    assert "changed since" not in before
    with (shelf / "a.jsonl").open("a") as out:
        out.write("{}\n")
    (shelf / "a.pbin").unlink()
    page = text_of(client.get("/shelf").text)
    assert page.count("no longer there") == 1
    assert page.count("changed since the viewer started") == 1
