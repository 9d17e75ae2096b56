"""Conversion of images and of samples with missing parts; expected bytes are those that were packed or stored."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import penstock as ps
from penstock.errors import ConfigError, Corrupt, Unsupported

Cli = Callable[..., tuple[int, str]]

PIXELS = np.random.default_rng(5).integers(0, 256, (6, 8, 3), np.uint8)


def _image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, kind)
    return file.getvalue()


JPG, PNG, WEBP, GIF, BMP, TIF = map(_image, ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"))


def _table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


def _tars(folder: Path, samples: dict[str, dict[str, bytes]]) -> Path:
    folder.mkdir()
    with tarfile.open(folder / "s.tar", "w") as tar:
        for key, parts in samples.items():
            for part, data in parts.items():
                info = tarfile.TarInfo(f"{key}.{part}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    ps.prepare(folder, split_ratio=[1, 0, 0], workers=1)
    return folder


def _members(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            found |= {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    return found


# --- 1.17: content decides ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["bytes", "file"])
@pytest.mark.parametrize("to", ["webdataset", "folder"])
def test_content_decides_the_extension_of_each_value(cli: Cli, tmp_path: Path, shape: str, to: str) -> None:
    files = {"jpg": JPG, "png": PNG, "webp": WEBP, "gif": GIF, "bmp": BMP, "tif": TIF}
    rows = [{"image": data if shape == "bytes" else {"bytes": data, "path": "x.jpg"}} for data in files.values()]
    out = tmp_path / "out"
    source = _table(tmp_path / "a.parquet", rows)
    status, output = cli("convert", str(source), str(out), "--to", to, "--workers", "1")
    assert status == 0, output
    expected = {f"{number:09d}.image.{suffix}": data for number, (suffix, data) in enumerate(files.items())}
    if to == "folder":
        assert {one.name: one.read_bytes() for one in out.iterdir() if ".penstock" not in one.name} == expected
        return
    assert _members(out) == expected
    named = "image: image.bmp,image.gif,image.jpg,image.png,image.tif,image.webp"
    assert named in " ".join(output.split())
    meta = out / ".nv-meta/dataset.yaml"
    fields = f"field_map:\n  {named}\n"
    meta.write_text(f"sample_type:\n  __module__: megatron.energon\n  __class__: ImageSample\n{fields}")
    source = ps.open(out, split="train", decode="uint8")
    for number, data in enumerate(files.values()):
        with Image.open(io.BytesIO(data)) as image:
            assert source[number]["image"].tolist() == np.asarray(image.convert("RGB")).tolist()


def test_the_stored_path_decides_only_if_the_content_is_unknown(tmp_path: Path) -> None:
    rows = [{"image": {"bytes": JPG, "path": "a.png"}}, {"image": {"bytes": b"?" * 20, "path": "b.PCX"}}]
    ps.convert(_table(tmp_path / "a.parquet", rows), tmp_path / "out", to="webdataset", workers=1)
    assert list(_members(tmp_path / "out")) == ["000000000.image.jpg", "000000001.image.pcx"]
    rows.append({"image": {"bytes": b"?" * 20, "path": None}})
    with pytest.raises(ConfigError, match=r"sample 2, column 'image': content of an unknown kind"):
        ps.convert(_table(tmp_path / "b.parquet", rows), tmp_path / "none", to="webdataset", workers=1)
    assert not (tmp_path / "none").exists()


def test_images_of_mds_get_the_extension_of_their_content(tmp_path: Path) -> None:
    with ps.create(tmp_path / "mds", format="mds", columns={"image": "bytes", "n": "int"}) as writer:
        for number, data in enumerate((PNG, JPG, WEBP)):
            writer.write({"image": data, "n": number})
    ps.convert(tmp_path / "mds", tmp_path / "out", to="webdataset", workers=1)
    names = [name for name in _members(tmp_path / "out") if ".image." in name]
    assert names == ["000000000.image.png", "000000001.image.jpg", "000000002.image.webp"]


def _box(*brands: bytes) -> bytes:
    """The first box of an ISO base media file: its brand, a version, and compatible brands; and a box of zeros."""
    return (
        (16 + 4 * (len(brands) - 1)).to_bytes(4, "big")
        + b"ftyp"
        + brands[0]
        + bytes(4)
        + b"".join(brands[1:])
        + bytes(64)
    )


@pytest.mark.parametrize("to", ["webdataset", "folder"])
@pytest.mark.parametrize(
    ("suffix", "data"),
    [
        ("heic", _box(b"heic", b"mif1", b"heic")),
        ("heic", _box(b"mif1", b"heic", b"miaf")),
        ("avif", _box(b"mif1", b"avif", b"miaf")),
        ("svg", b'<svg xmlns="http://www.w3.org/2000/svg"/>'),
        ("svg", b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- a -->\n<!DOCTYPE svg>\n<svg\nwidth="1"></svg>'),
        ("bin", b'<?xml version="1.0"?><html><svg></svg></html>'),
        ("bin", b"<svgs/>"),
    ],
)
def test_pictures_that_no_decoder_reads_get_their_extension_too(
    tmp_path: Path, to: str, suffix: str, data: bytes
) -> None:
    ps.convert(_table(tmp_path / "a.parquet", [{"image": data}]), tmp_path / "out", to=to, workers=1)
    name = f"000000000.image.{suffix}"
    assert (_members(tmp_path / "out")[name] if to == "webdataset" else (tmp_path / "out" / name).read_bytes()) == data
    ps.convert(tmp_path / "out", tmp_path / "back", to="mds", workers=1)
    assert data in ps.open(tmp_path / "back")[0].values()


def test_other_bytes_stay_bin(tmp_path: Path) -> None:
    ps.convert(_table(tmp_path / "a.parquet", [{"blob": b"\1\2"}]), tmp_path / "out", to="webdataset", workers=1)
    assert _members(tmp_path / "out") == {"000000000.blob.bin": b"\1\2"}


# --- 3.1: missing parts ------------------------------------------------------------------------------------------

MIXED = {
    "a": {"png": PNG, "txt": b"one", "cls": b"1"},
    "b": {"png": PNG, "txt": b"two"},
    "c": {"txt": b"three", "cls": b"3"},
    "d": {"png": PNG, "cls": b"4"},
    "e": {"png": JPG, "txt": b"five", "cls": b"5"},
}


@pytest.mark.parametrize("to", ["mds", "json-shards", "jsonl"])
@pytest.mark.parametrize("missing", ["error", "skip", "null"])
def test_samples_with_missing_parts(cli: Cli, tmp_path: Path, to: str, missing: str) -> None:
    source = _tars(tmp_path / "tars", MIXED)
    out = tmp_path / ("out.jsonl" if to == "jsonl" else "out")
    columns = {"mds": None, "json-shards": "txt=str,cls=int", "jsonl": "txt,cls"}[to]
    extra = [] if columns is None else ["--columns", columns]
    status, output = cli("convert", str(source), str(out), "--to", to, "--missing", missing, "--workers", "1", *extra)
    assert status != 70, output
    names = ("png", "txt", "cls") if to == "mds" else ("txt", "cls")
    if missing == "skip":
        assert status == 0, output
        whole = [key for key, parts in MIXED.items() if all(name in parts for name in names)]
        assert f"{len(MIXED) - len(whole)} samples skipped, which lack a column" in " ".join(output.split())
        found = ps.open(out, format=to)
        assert [one["txt"] for one in found] == [MIXED[key]["txt"].decode() for key in whole]
        assert ps.verify(out, format=to, depth="full") == []
    elif to == "jsonl":
        assert status == 0, output
        expected: list[dict[str, Any]] = []
        for parts in MIXED.values():
            one: dict[str, Any] = {"txt": parts["txt"].decode()} if "txt" in parts else {}
            expected.append(one | ({"cls": int(parts["cls"])} if "cls" in parts else {}))
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        assert [{name: line.get(name) for name in ("txt", "cls") if line.get(name) is not None} for line in lines] == (
            expected
        )
    else:
        assert status != 0
        assert "--missing skip" in output
        if to == "mds":
            assert "missing or null, first in sample 2" in " ".join(output.split())
        assert not out.exists()


def test_text_and_numbers_become_json_with_null(tmp_path: Path) -> None:
    source = _tars(tmp_path / "tars", MIXED)
    ps.convert(source, tmp_path / "out", to="mds", columns=["txt", "cls"], workers=1)
    found = ps.open(tmp_path / "out")
    assert [(one["txt"], one["cls"]) for one in found] == [
        ("one", 1), ("two", None), ("three", 3), (None, 4), ("five", 5),
    ]  # fmt: skip


def test_skipping_works_by_parts_too(tmp_path: Path) -> None:
    source = _tars(
        tmp_path / "tars", {f"{n:03d}": {"txt": b"x%d" % n} | ({"png": PNG} if n % 3 else {}) for n in range(30)}
    )
    how: Any = {"to": "mds", "missing": "skip", "workers": 1, "group_rows": 4}
    for number in range(2):
        ps.convert(source, tmp_path / "out", part=(number, 2), **how)
    report = ps.convert(source, tmp_path / "out", finish=True, **how)
    assert report.skipped == 10
    assert [one["txt"] for one in ps.open(tmp_path / "out")] == [f"x{n}" for n in range(30) if n % 3]


def test_a_part_that_only_later_samples_have_is_not_lost(tmp_path: Path) -> None:
    samples = {f"{n:04d}": {"txt": b"%d" % n} for n in range(1100)}
    samples["1090"]["json"] = b"{}"
    source = _tars(tmp_path / "tars", samples)
    ps.convert(source, tmp_path / "copy", to="webdataset", workers=1)
    assert ps.open(tmp_path / "copy", split="train", raw=True)[1090]["json"] == b"{}"
    with pytest.raises(ConfigError, match="sample 1090 has a field 'json'"):
        ps.convert(source, tmp_path / "mds", to="mds", workers=1)


# --- 4.5: several images per row ---------------------------------------------------------------------------------

LISTS = [[JPG, PNG], [], [WEBP], [PNG, JPG, GIF]]
KINDS = {JPG: "JPEG", PNG: "PNG", WEBP: "WEBP", GIF: "GIF"}
SUFFIX = {JPG: "jpg", PNG: "png", WEBP: "webp", GIF: "gif"}


@pytest.mark.parametrize("shape", ["bytes", "file"])
def test_lists_of_images_become_numbered_parts(tmp_path: Path, shape: str) -> None:
    kind = pa.list_(pa.binary() if shape == "bytes" else pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    rows = [
        {"images": [one if shape == "bytes" else {"bytes": one, "path": None} for one in files], "text": f"{number}"}
        for number, files in enumerate(LISTS)
    ]
    source = _table(tmp_path / "a.parquet", rows, pa.schema({"images": kind, "text": pa.string()}))
    ps.convert(source, tmp_path / "tars", to="webdataset", workers=1)
    expected = {
        f"{number:09d}.images.{place}.{SUFFIX[data]}": data
        for number, files in enumerate(LISTS)
        for place, data in enumerate(files)
    }
    assert {name: data for name, data in _members(tmp_path / "tars").items() if ".images." in name} == expected
    ps.convert(source, tmp_path / "files", to="folder", workers=1)
    assert {one.name: one.read_bytes() for one in (tmp_path / "files").glob("*.images.*")} == expected
    for again in (source, tmp_path / "tars", tmp_path / "files"):
        out = tmp_path / f"mds-{again.name}"
        ps.convert(again, out, to="mds", workers=1, **({"format": "folder"} if again.name == "files" else {}))
        mds = ps.open(out)
        assert json.loads((out / "index.json").read_text())["shards"][0]["column_encodings"].count("list[jpeg]") == 1
        assert [[image.format for image in one["images"]] for one in mds] == [
            [{"jpg": "JPEG", "tif": "TIFF"}.get(SUFFIX[data], SUFFIX[data].upper()) for data in files]
            for files in LISTS
        ]
    ps.convert(tmp_path / "mds-a.parquet", tmp_path / "back", to="webdataset", workers=1)
    assert {name: data for name, data in _members(tmp_path / "back").items() if ".images." in name} == expected


def test_a_message_names_the_row_and_the_image(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    files = [[{"bytes": JPG, "path": None}], [{"bytes": JPG, "path": None}, {"bytes": b"?" * 9, "path": "a.tga"}]]
    source = _table(tmp_path / "a.parquet", [{"images": one} for one in files], pa.schema({"images": kind}))
    ps.convert(source, tmp_path / "out", to="webdataset", workers=1)
    assert list(_members(tmp_path / "out"))[-1] == "000000001.images.1.tga"
    more = [[{"bytes": JPG, "path": None}]] * 1000 + [
        [{"bytes": JPG, "path": None}, {"bytes": None, "path": "gone.jpg"}]
    ]
    source = _table(tmp_path / "b.parquet", [{"images": one} for one in more], pa.schema({"images": kind}))
    with pytest.raises(ConfigError, match=r"sample 1000, column 'images': item 1"):
        ps.convert(source, tmp_path / "none", to="webdataset", workers=1)


def test_missing_is_refused_where_it_means_nothing(tmp_path: Path) -> None:
    source = _tars(tmp_path / "tars", MIXED)
    with pytest.raises(Unsupported):
        ps.convert(source, tmp_path / "out", to="mds", missing="null", workers=1)
    wrong: Any = "maybe"
    with pytest.raises(ConfigError, match=r"error \| skip \| null"):
        ps.convert(source, tmp_path / "out", to="mds", missing=wrong, workers=1)


# --- one value, one place ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["webdataset", "folder"])
@pytest.mark.parametrize(
    "row",
    [
        {"image": JPG, "image.jpg": JPG + b"x"},
        {"image": JPG, "image.jpg": PNG},  # other parts in this sample, but not in every one
        {"images": [JPG, PNG], "images.1": PNG},
        {"caption": "a", "caption.txt": "b"},
        {"x": 1, "x.cls": 2},
    ],
)
def test_columns_that_become_the_same_part_are_refused(tmp_path: Path, to: str, row: dict[str, Any]) -> None:
    source = _table(tmp_path / "a.parquet", [row])
    with pytest.raises(ConfigError, match="become the same part"):
        ps.convert(source, tmp_path / "out", to=to)


def test_named_columns_that_become_the_same_part_are_refused(tmp_path: Path) -> None:
    source = _table(tmp_path / "a.parquet", [{"a": "x", "b": "y"}])
    with pytest.raises(ConfigError, match="'a' and 'b' become the same part"):
        ps.convert(source, tmp_path / "out", to="webdataset", columns={"a": "c.txt", "b": "c.txt"})


@pytest.mark.parametrize(
    "parts",
    [
        ["images.0.jpg", "images.2.jpg"],
        ["images.1.jpg", "images.2.jpg"],
        ["images.0.jpg", "images.0.png"],
        ["0.jpg", "images.0.jpg"],
    ],
)
def test_numbered_parts_with_gaps_or_twice_are_no_list(cli: Cli, tmp_path: Path, parts: list[str]) -> None:
    whole = {"images.0.jpg": JPG, "images.1.jpg": PNG, "txt": b"a"}
    source = _tars(tmp_path / "tars", {"a": whole, "b": dict.fromkeys(parts, JPG) | {"txt": b"b"}})
    status, output = cli("convert", str(source), str(tmp_path / "out"), "--to", "mds")
    assert status == 6
    assert "sample 1: the numbered parts 'images' don't form a list" in output
    assert ", ".join(parts) in output


def test_lists_may_begin_at_one(tmp_path: Path) -> None:
    parts = {f"images.{number}.jpg": JPG + bytes([number]) for number in range(1, 13)}
    ps.convert(_tars(tmp_path / "tars", {"a": dict(reversed(parts.items()))}), tmp_path / "out", to="mds")
    ps.convert(tmp_path / "out", tmp_path / "back", to="webdataset")
    assert list(_members(tmp_path / "back").values()) == list(parts.values())


def test_sizes_in_names_are_no_positions(tmp_path: Path) -> None:
    source = _tars(tmp_path / "tars", {"a": {"256.jpg": JPG, "1024.jpg": JPG + b"x"}})
    ps.convert(source, tmp_path / "out", to="mds")
    ps.convert(tmp_path / "out", tmp_path / "back", to="webdataset")
    assert _members(tmp_path / "back") == {"a.256.jpg": JPG, "a.1024.jpg": JPG + b"x"}


def test_files_of_a_sample_with_a_folder_between_them(tmp_path: Path) -> None:
    files = {"a.jpg": JPG, "a.k/z.jpg": PNG, "a.k/z.txt": b"z", "a.txt": b"a"}  # in byte order
    for name, data in files.items():
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(data)
    assert ps.convert(tmp_path / "files", tmp_path / "tars", to="webdataset").samples == 2
    assert _members(tmp_path / "tars") == files
    lines = tmp_path / "o.jsonl"
    ps.convert(tmp_path / "files", lines, columns=["__key__", "txt"])
    keyed = [json.loads(line) for line in lines.read_text().splitlines()]
    assert keyed == [{"__key__": "a", "txt": "a"}, {"__key__": "a.k/z", "txt": "z"}]


@pytest.mark.parametrize("to", ["webdataset", "folder", "mds", "csv", "json-shards"])
@pytest.mark.parametrize(("usual", "late"), [(1, 2.7), (1, True), (1.5, 2**53 + 1)])
def test_a_later_number_is_never_rounded(tmp_path: Path, to: str, usual: float, late: float) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"x": value}) + "\n" for value in [*[usual] * 1000, late]))
    out = tmp_path / "out"
    if to in ("webdataset", "folder") and isinstance(usual, float):
        ps.convert(source, out, to=to)
        files = _members(out) if to == "webdataset" else {one.name: one.read_bytes() for one in out.iterdir()}
        assert json.loads(files["000001000.x.json"]) == late
        return
    with pytest.raises(ConfigError, match="sample 1000"):
        ps.convert(source, out, to=to)
    assert not out.exists()


def test_columns_with_underscores_become_parts(tmp_path: Path) -> None:
    source = _table(tmp_path / "a.parquet", [{"text": "a", "__index_level_0__": 7, "__url__": "u"}])
    ps.convert(source, tmp_path / "out", to="webdataset")
    named = {"text": b"a", "__index_level_0__.cls": b"7", "__url__.txt": b"u"}
    assert _members(tmp_path / "out") == {f"000000000.{name}": data for name, data in named.items()}


_NAMES = """
    mp4 wav webp gif flac mp3 ogg pth npz npy pkl jpeg tif bmp text jsn cls2 index msg ten seg.png left.wav xyz m4a
    json.gz info.jsonl JPG TXT bin txt json cls jpg png
"""
NAMES = _NAMES.split()


@pytest.mark.parametrize("to", ["webdataset", "folder"])
@pytest.mark.parametrize("format", ["webdataset", "folder"])
def test_parts_keep_their_names_between_tars_and_folders(tmp_path: Path, format: str, to: str) -> None:
    parts = {name: b"5" if name.startswith(("cls", "index")) else name.encode() for name in NAMES}
    files = {f"a.{name}": data for name, data in parts.items()}
    source = tmp_path / "source"
    if format == "webdataset":
        _tars(source, {"a": parts})
    else:
        source.mkdir()
        for name, data in files.items():
            (source / name).write_bytes(data)
    out = tmp_path / "out"
    ps.convert(source, out, to=to)
    written = {one.name: one.read_bytes() for one in out.iterdir() if one.is_file() and one.name != ".penstock"}
    assert (_members(out) if to == "webdataset" else written) == files


def test_parts_of_bytes_keep_their_names_through_mds(tmp_path: Path) -> None:
    parts = {name: f"{name} of no known kind".encode() for name in ("mp4", "wav", "npz", "pth", "ten", "cbor")}
    ps.convert(_tars(tmp_path / "tars", {"a": parts}), tmp_path / "out", to="mds")
    ps.convert(tmp_path / "out", tmp_path / "back", to="webdataset")
    assert _members(tmp_path / "back") == {f"a.{name}": parts[name] for name in sorted(parts)}


@pytest.mark.parametrize("name", ["__key__", "__sources__", "__subflavors__"])
def test_no_part_replaces_the_key_of_a_sample(tmp_path: Path, name: str) -> None:
    source = ps.open(_tars(tmp_path / "tars", {"a": {"txt": b"a"}, "b": {"txt": b"b", name: b"x"}}), raw=True)
    assert source[0]["__key__"] == "a"
    for read in (lambda: source[1], lambda: source.get_batch([0, 1]), lambda: list(source)):
        with pytest.raises(Corrupt, match=f"a part has a reserved name.*{name}"):
            read()
