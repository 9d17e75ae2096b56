"""`penstock prepare`, `prepare-media`, `lint`, `preview`, and `penstock energon …` without a terminal."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.cli.called import called
from tests.codec.films import films
from tests.internals import main

import penstock as ps

GOLDEN = Path(__file__).parent.parent / "golden" / "energon"
DIALOGS: list[dict[str, Any]] = json.loads((GOLDEN / "dialogs.json").read_text())
FIELDS = '{"image": "jpg", "caption": "json[caption]"}'

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command, and gives what it said on standard output, then on standard error."""

    def run(*arguments: object, status: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([str(one) for one in arguments])
        said = capsys.readouterr()
        assert ended.value.code == status, said.err
        return said.out + said.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Shards that were never prepared."""
    return shutil.copytree(
        GOLDEN / "captioning", tmp_path / "set", ignore=shutil.ignore_patterns(".nv-meta", "*.idx", ".penstock")
    )


def test_all_by_flags(folder: Path, run: Run) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.tar")}
    said = run("prepare", folder, "--split-ratio", "2,1,1", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    assert "train: 2 shards, 20 samples" in said
    assert "caption: json[caption] -> 'json caption s0_000" in said
    assert [len(ps.open(folder, split=name)) for name in ("train", "val", "test")] == [20, 10, 10]
    for name, text in DIALOGS[0]["meta"].items():
        assert (folder / ".nv-meta" / name).read_text() == text
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.tar")} == before
    assert run("energon", "lint", folder).startswith(f"{folder}: clean; read 20 samples of train")


def test_a_file_in_place_of_a_directory(tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "point").mkdir()
    assert "not a directory of tar shards" in run("mount", tmp_path / "a.jsonl", tmp_path / "point", status=9)
    assert "a file instead of a folder" in run("prepare-media", tmp_path / "a.jsonl", status=9)


def test_refusals(folder: Path, run: Run) -> None:
    assert "--ratio" in run("prepare", folder, status=2)
    assert "three numbers" in run("prepare", folder, "--split-ratio", "8,1", status=10)
    assert "matches no shard" in run("prepare", folder, "--split-parts", "train:train-*", status=10)
    assert "unknown sample type" in run("prepare", folder, "--split-ratio", "1,0,0", "--sample-type", "X", status=10)
    wrong = ("prepare", folder, "--split-ratio", "1,0,0", "--sample-type", "CaptioningSample", "--field-map")
    assert "no part 'png'" in run(*wrong, '{"image": "png", "caption": "txt"}', status=10)
    assert "no caption" in run(*wrong, '{"image": "jpg"}', status=10)
    assert "invalid JSON" in run(*wrong, "{", status=2)
    assert "not both" in run("prepare", folder, "--split-ratio", "1,0,0", "--split-parts", "a:b", status=2)
    ways = ("--media-by-header", "--media-by-extension")
    assert "only one way" in run("prepare", folder, "--split-ratio", "1,0,0", *ways, status=2)
    assert not (folder / ".nv-meta").exists()


def test_a_type_without_a_field_map_gets_a_loader_to_fill_in(folder: Path, run: Run) -> None:
    run("prepare", folder, "--split-ratio", "1,0,0", "--sample-type", "VQASample")
    loader = (folder / ".nv-meta" / "sample_loader.py").read_text()
    compile(loader, "sample_loader.py", "exec")
    assert "image=...,  # required" in loader
    assert "('jpg', 'json', 'txt')" in loader
    assert "sample_loader.py:sample_loader" in (folder / ".nv-meta" / "dataset.yaml").read_text()


@pytest.mark.parametrize(
    "flags",
    [
        ("--media-by-extension",),
        ("--media-metadata-by-extension",),
        ("--media-metadata", "--media-by-glob", "*.jpg"),
        ("--media-metadata", "--media-by-header"),
        ("--media-metadata",),
    ],
    ids=" ".join,
)
def test_media(folder: Path, run: Run, flags: tuple[str, ...]) -> None:
    verb = ("energon", "prepare", "--non-interactive") if "metadata-by" in flags[0] else ("prepare",)
    run(*verb, folder, "--split-ratio", "1,0,0", *flags)
    source: Any = ps.open(folder, raw=True)
    assert source.get_media_metadata("s0_000.jpg").width == 8
    said = json.loads(run("prepare-media", folder, "--num-workers", "1", "--json"))
    assert said["num_rows"] == 40


def test_media_of_a_folder(tmp_path: Path, run: Run) -> None:
    copy = shutil.copytree(GOLDEN / "filesystem", tmp_path / "set", ignore=shutil.ignore_patterns(".nv-meta"))
    assert "warning: bad.jpg" in run("energon", "prepare-media", copy, "--media-by-extension", "--no-progress")
    assert "bad.jpg" in run("energon", "lint", copy, status=1)


def test_media_whose_packets_are_counted(tmp_path: Path, run: Run) -> None:
    data = films()["va.mkv"]
    (tmp_path / "a.mkv").write_bytes(data)
    said = run("prepare-media", tmp_path, "--headers-only")
    assert "whole" not in said
    metadata = ps.open(tmp_path).get_media_metadata("a.mkv")  # type: ignore[attr-defined]
    assert (metadata.video_width, metadata.video_num_frames, metadata.audio_duration) == (32, None, None)
    said = run("energon", "prepare-media", tmp_path, "--media-by-extension")
    assert "reading the whole of 1 file" in said
    assert "--headers-only" in said
    metadata = ps.open(tmp_path).get_media_metadata("a.mkv")  # type: ignore[attr-defined]
    assert (metadata.video_num_frames, metadata.audio_duration) == (6, 0.3)
    assert "either --exact or --headers-only" in run("prepare-media", tmp_path, "--exact", "--headers-only", status=2)


@pytest.mark.parametrize("dialog", DIALOGS, ids=[repr(one["stdin"])[:20] for one in DIALOGS])
def test_recorded_dialogs(folder: Path, dialog: dict[str, Any]) -> None:
    """Answers that were piped into Energon's own command have the same effect; a wrong one writes nothing."""
    command = ("energon", "prepare", "--no-progress", "--num-workers", "1", folder)
    done = called(*command, given=dialog["stdin"])
    assert (done.returncode == 0) == bool(dialog["meta"]), done.stderr
    for name, text in dialog["meta"].items():
        assert (folder / ".nv-meta" / name).read_text() == text
    if not dialog["meta"]:
        assert not (folder / ".nv-meta").exists()
    assert (folder / ".nv-meta" / "dataset.yaml").exists() == ("dataset.yaml" in dialog["meta"])


def test_again_and_tar_index_only(folder: Path, run: Run) -> None:
    run("prepare", folder, "--split-ratio", "1,1,0")
    assert "already prepared" in run("prepare", folder, "--split-ratio", "1,0,0", status=10)
    run("prepare", folder, "--split-ratio", "1,0,0", "--overwrite", "--non-interactive")
    assert len(ps.open(folder, split="train")) == 40
    (index,) = folder.rglob("shard_001.tar.idx")
    index.unlink()
    run("energon", "prepare", "--tar-index-only", folder)
    assert index.exists()
    run("energon", "prepare", folder, "--force-overwrite", "--split-parts", "a:.*", "--skip-dataset-yaml")
    assert len(ps.open(folder, split="a")) == 40


def test_jsonl(tmp_path: Path, run: Run) -> None:
    copy = tmp_path / "a.jsonl"
    shutil.copy(GOLDEN / "jsonl" / "basic.jsonl", copy)
    run("prepare", copy)
    first = Path(f"{copy}.idx").read_bytes()
    assert first == (GOLDEN / "jsonl" / "basic.jsonl.idx").read_bytes()
    run("energon", "prepare", copy)
    assert "samples  3" in run("energon", "info", copy)
    assert "read 3 samples" in run("energon", "lint", copy)


def test_info(folder: Path, run: Run) -> None:
    run("prepare", folder, "--split-ratio", "2,1,1", "--sample-type", "CrudeWebdataset")
    found = json.loads(run("energon", "info", folder, "--json"))
    assert found["splits"]["val"] == "25.0%, 10 samples, 1 shard"
    assert (found["sample_type"], found["shards"], found["energon_version"]) == ("CrudeWebdataset", 4, "7.4.1")


def test_info_counts_no_sample_that_is_excluded(folder: Path, run: Run) -> None:
    run("prepare", folder, "--split-ratio", "2,1,1", "--sample-type", "CrudeWebdataset")
    whole = {name: ps.open(folder, split=name, raw=True) for name in ("train", "val")}
    config = folder / ".nv-meta" / "split.yaml"
    gone = [
        f"{source[i]['__sources__'][0].shard_name}/{source[i]['__key__']}" for source in whole.values() for i in (0, 3)
    ]
    config.write_text(
        config.read_text().replace("exclude: []", f"exclude: {json.dumps([*gone, 'shard_000.tar/nobody'])}")
    )
    found = json.loads(run("info", folder, "--json", "--split", "train"))
    assert found["samples"] == len(ps.open(folder, split="train", raw=True)) == 18
    details = json.loads(run("energon", "info", folder, "--json"))
    assert details["splits"]["train"] == "50.0%, 18 samples, 2 shards, 2 more excluded in split.yaml"
    assert details["splits"]["val"] == "22.2%, 8 samples, 1 shard, 2 more excluded in split.yaml"
    assert details["samples_of_all_splits"] == "36"
    assert found["details"]["splits"] == details["splits"]


def test_lint_says_where_and_why(folder: Path, run: Run) -> None:
    with tarfile.open(folder / "zz.tar", "w") as tar:
        for name, content in (("ok.jpg", b"x"), ("ok.json", b'{"caption": 1}'), ("bad.jpg", b"x"), ("bad.json", b"{")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    run("prepare", folder, "--split-parts", "train:zz", "--split-parts", "val:shards")
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: 'json[caption]'}\n"
    )
    found = json.loads(run("energon", "lint", folder, "--json", "--split-parts", "train", status=1))
    (bad,) = found["findings"]
    assert (bad["path"], bad["offset_bytes"]) == (f"{folder}/zz.tar", 2048)
    assert "sample 1 of train, key 'bad'" in bad["found"]
    assert "json" in bad["found"]
    assert found["samples"] == {"train": 2}
    assert "unknown split" in run("energon", "lint", folder, "--split-parts", "test,nothing", status=1)


def test_lint_of_a_layout_that_is_named(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "train.bin"
    np.arange(12, dtype=np.uint16).tofile(path)
    assert "layout" in run("energon", "lint", path, "--format", "raw-tokens", "--eos-id", 11, status=1)
    said = run("energon", "lint", path, "--format", "raw-tokens", "--layout", "uint16", "--eos-id", 11)
    assert said.startswith(f"{path}: clean; read 1 samples")
    assert "layout" in run("energon", "lint", path, "--format", "raw-tokens", "--layout", "nope", status=1)


def test_lint_says_a_cause_once(tmp_path: Path, run: Run) -> None:
    for shard, text in enumerate(('{"caption": 1}', '{"other": 1}', '{"caption": 1}', "{")):
        with tarfile.open(tmp_path / f"{shard:03d}.tar", "w") as tar:
            for number in range(20):
                member = tarfile.TarInfo(f"k{shard}_{number:03d}.json")
                member.size = len(text)
                tar.addfile(member, BytesIO(text.encode()))
    field_map = ("--sample-type", "TextSample", "--field-map", '{"text": "json[caption]"}')
    run("prepare", tmp_path, "--split-parts", "train:.*", *field_map)
    for torn in ("000.tar", "002.tar"):
        with (tmp_path / torn).open("r+b") as file:
            file.truncate(5 * 1024)
    found = json.loads(run("energon", "lint", tmp_path, "--json", status=1))["findings"]
    told = [one["found"] for one in found if one["code"] == "webdataset.sample"]
    for what, shard, more in zip(told, ("000.tar", "k1_000", "002.tar", "k3_000"), (14, 19, 14, 19), strict=True):
        assert shard in what
        assert f"the same in {more} more samples" in what


def test_preview(folder: Path, run: Run) -> None:
    run("prepare", folder, "--split-ratio", "1,0,0")
    said = run("energon", "preview", folder, "-n", "2")
    for text in ("sample 0 of 40", "key  s0_001", "JPEG image, 8 x 6, RGB", '"nested": {'):
        assert text in said
    assert "\x1b[38;2;" not in said
    lines = said.splitlines()
    assert "Sample 0" in lines
    assert " - __key__ (<class 'str'>): 's0_001'" in lines  # Energon's words, for scripts
    assert any(one.startswith(" - jpg (<class 'bytes'>): bytes(length=") for one in lines)
    own = run("head", folder, "--key", "s0_002", "--pictures")
    assert "\x1b[38;2;" in own
    assert "(<class" not in own


def test_preview_steers_no_terminal(tmp_path: Path, run: Run) -> None:
    with ps.create(tmp_path / "set", format="webdataset") as writer:
        writer.write({"__key__": "k", "txt": "\x1b]0;title\x07 ▀ \x1b[38;2;1;1;1m done"})
    said = run("head", tmp_path / "set", "--pictures")
    assert "\x1b" not in said
    assert "done" in said


@pytest.mark.parametrize(
    "options",
    [
        ("--split-ratio", "8,1,1"), ("--split-parts", "train:a"), ("--exclude", "x"), ("--shuffle-tars",),
        ("--sample-type", "TextSample"), ("--field-map", "{}"), ("--dataset-yaml-name", "a.yaml"),
        ("--skip-dataset-yaml",), ("--tar-index-only",), ("--no-sqlite",), ("--media-metadata",),
        ("--media-by-header",), ("--media-by-glob", "*"), ("--media-by-extension",), ("--exact",), ("--headers-only",),
        ("--fix-duplicates",),
    ],
    ids=lambda options: options[0],
)  # fmt: skip
def test_options_that_mean_nothing_for_a_kind_of_data_are_refused(
    options: tuple[str, ...], tmp_path: Path, run: Run
) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    assert f"leave out {options[0]}" in run("energon", "prepare", tmp_path / "a.jsonl", *options, status=1)
    if options[0] != "--fix-duplicates":  # only Energon's
        option = options[0].replace("--split-ratio", "--ratio")
        assert f"leave out {option}" in run("prepare", tmp_path / "a.jsonl", *options, status=2)
    assert not (tmp_path / "a.jsonl.idx").exists()
    (tmp_path / "a.yaml").write_text("x: 1\n")
    assert f"leave out {options[0]}" in run("energon", "prepare", tmp_path / "a.yaml", *options, status=1)


def test_options_that_exclude_each_other(folder: Path, run: Run) -> None:
    ratio = ("prepare", folder, "--split-ratio", "1,0,0")
    for options, said in (
        ((*ratio, "--skip-dataset-yaml", "--sample-type", "TextSample"), "leave out --sample-type"),
        ((*ratio, "--exact"), "leave out --exact"),
        ((*ratio, "--dataset-yaml-name", "a.yaml"), "leave out --dataset-yaml-name"),
        (("prepare", folder, "--split-parts", "train:.*", "--shuffle-tars"), "leave out --shuffle-tars"),
        (("prepare", folder, "--tar-index-only", "--shuffle-tars"), "leave out --shuffle-tars"),
    ):
        assert said in run(*options, status=2)
    assert not (folder / ".nv-meta").exists()


def test_what_info_lint_and_preview_pass_over_is_said_or_refused(folder: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    run("energon", "prepare", tmp_path / "a.jsonl")
    for verb in ("info", "lint"):
        for option in ("--split-config", "--dataset-config"):
            run("energon", verb, tmp_path / "a.jsonl", option, "a.yaml", status=1)
    assert "one process reads" in run("energon", "lint", tmp_path / "a.jsonl", "--parallel", "4")
    assert "no splits" in run("energon", "preview", tmp_path / "a.jsonl", "--split-parts", "train", status=2)
    run("prepare", folder, "--split-ratio", "2,1,1", "--sample-type", "CaptioningSample", "--field-map", FIELDS)
    assert "as they are stored" in run("energon", "preview", folder, "--dataset-config", "dataset.yaml")
    assert "the first of them" in run("energon", "preview", folder, "--split-parts", "train,val")
    assert "--start" in run("energon", "preview", folder, "--key", "x", "--start", "2", status=1)


def test_energons_last_words_are_there_for_scripts_that_look_for_them(folder: Path, run: Run, tmp_path: Path) -> None:
    flags = ("--split-ratio", "2,1,1", "--media-metadata", "--non-interactive")
    assert "\nDone\n" in run("energon", "prepare", folder, *flags)
    assert "Done" not in run("prepare", folder, *flags, "--overwrite")
    assert "Done. Stored metadata for " in run("energon", "prepare-media", folder)
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"a": 1}\n' * 3)
    assert run("energon", "prepare", lines).endswith("\nDone. Found 3 samples.\n")
    said = run("energon", "prepare", lines, "--json")
    assert json.loads(said[: said.rindex("}") + 1])["num_lines"] == 3
    assert "Done" not in said


def test_energons_commands_end_with_energons_statuses(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--non-interactive", "--split-ratio", "1,0,0")
    run("energon", "prepare", folder, *flags)
    assert "already prepared" in run("energon", "prepare", folder, *flags, status=1)
    assert "already prepared" in run("prepare", folder, *flags, status=10)
    assert yaml.safe_load((folder / ".nv-meta" / "split.yaml").read_text())["split_parts"]["val"] == []
    assert "penstock explain" in run("energon", "analyze-debug", "log.jsonl", status=1)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))  # no, do not prepare it again
    assert "Prepare it again?" in run("energon", "prepare", folder)
    shutil.rmtree(folder / ".nv-meta")
    assert "--split-ratio" in run("energon", "prepare", folder, "--non-interactive", status=1)
    wrong = ("--sample-type", "TextSample", "--field-map", "{")
    assert "invalid JSON" in run("energon", "prepare", folder, *flags, *wrong, status=1)
    assert "No such option" in run("energon", "prepare", folder, "--bogus", status=2)
    for group in (("energon",), ("energon", "checkpoint")):
        assert "Commands:" in run(*group)
    assert run("energon", "-V") == run("energon", "--version")


@pytest.mark.parametrize("flags", [("--split-parts", "train:shards"), ("--split-ratio", "8,1,1"), ()])
@pytest.mark.parametrize("answer", ["CaptioningWebdataset", "CaptioningSample", "0"])
def test_answers_that_are_piped_in(
    folder: Path, run: Run, flags: tuple[str, ...], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = () if flags else ("8,1,1",)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join((*first, "y", answer, "y", "jpg", "json[caption]")) + "\n"))
    assert "\nDone\n" in run("energon", "prepare", folder, *flags)
    made = yaml.safe_load((folder / ".nv-meta" / "dataset.yaml").read_text())
    assert made["sample_type"]["__class__"] == "CaptioningSample"
    assert made["field_map"] == {"image": "jpg", "caption": "json[caption]"}


def test_samples_without_fields_need_no_field_map(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Energon's type 6, whose fields nobody is asked for."""
    monkeypatch.setattr("sys.stdin", io.StringIO("3,1,0\ny\n6\ny\n"))
    assert "\nDone\n" in run("energon", "prepare", folder)
    assert yaml.safe_load((folder / ".nv-meta/dataset.yaml").read_text()) == {
        "sample_type": {"__module__": "megatron.energon", "__class__": "Sample"},
        "field_map": {},
    }
    assert set(ps.open(str(folder), split="train")[0]) >= {"__key__", "__sources__"}


def test_the_version_is_energons(run: Run) -> None:
    assert run("energon", "--version").splitlines()[0] == "megatron-energon 7.4.1"


def test_answers_that_end_too_early_end_it_as_energons_command(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("8,1,1\ny\n"))
    assert "Done" not in run("energon", "prepare", folder, status=1)
    assert not (folder / ".nv-meta" / "dataset.yaml").exists()


def test_info_tells_the_parts_of_samples(tmp_path: Path, run: Run) -> None:
    with ps.create(tmp_path / "set", format="webdataset", maxcount=3) as writer:
        for number in range(8):
            more = {"jpg": b"x" * 900} if number % 4 == 0 else {}
            writer.write({"__key__": f"k{number}", "txt": b"t" * 100, **more})
    told = json.loads(run("info", tmp_path / "set", "--json"))["parts"]
    assert (told["estimated_from"], told["of"]) == (None, 8)
    parts = {one["name"]: (one["share"], one["mean_bytes"]) for one in told["parts"]}
    assert parts == {"txt": (1.0, 100.0), "jpg": (0.25, 900.0)}
    assert [round(one["share_of_bytes"], 3) for one in told["parts"]] == [0.308, 0.692]
    said = run("info", tmp_path / "set")
    assert "parts, of all 8 samples" in said
    assert ["jpg", "25.0%", "900", "B", "69.2%"] in [line.split() for line in said.splitlines()]
