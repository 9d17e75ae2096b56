"""Writing lines: what JSON holds, and what stands beside the file at any moment."""

from __future__ import annotations

import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import replace

import penstock as ps
from penstock.errors import ConfigError
from penstock.store import LocalStore
from penstock.testing import FaultStore, count_operations


def write(path: Path, samples: list[dict[str, Any]], **options: Any) -> bytes:
    with ps.create(path, format="jsonl", **options) as writer:
        for sample in samples:
            writer.write(sample)
    return path.read_bytes()


def test_one_object_a_line_and_the_index(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    data = write(path, [{"b": 1, "a": "é\n\u2028"}, {}])
    assert data == '{"b":1,"a":"é\\n\u2028"}\n{}\n'.encode()
    assert (tmp_path / "a.idx").read_bytes() == pickle.dumps([(0, len(data) - 4), (len(data) - 3, 2)], 4)
    assert sorted(os.listdir(tmp_path)) == ["a.idx", "a.jsonl", "a.jsonl.penstock"]


def test_no_sample_makes_an_empty_file_that_opens(tmp_path: Path) -> None:
    assert write(tmp_path / "a.jsonl", []) == b""
    assert len(ps.open(tmp_path / "a.jsonl")) == 0


def test_values_of_numpy_and_of_python_only(tmp_path: Path) -> None:
    sample = {
        "array": np.array([[1, 2]], np.uint8),
        "scalar": np.float64(0.5),
        "flag": np.bool_(True),
        "nan": float("nan"),
        "inf": -math.inf,
        "big": 1 << 80,
        "tuple": (1, None),
        "lone": "\udc00",
    }
    write(tmp_path / "a.jsonl", [sample])
    found = ps.open(tmp_path / "a.jsonl")[0]
    assert math.isnan(found.pop("nan"))
    assert found == {
        "array": [[1, 2]],
        "scalar": 0.5,
        "flag": True,
        "inf": -math.inf,
        "big": 1 << 80,
        "tuple": [1, None],
        "lone": "\udc00",
    }


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, 1j, object(), [[b"deep"]]])
def test_what_json_can_not_hold_is_refused(tmp_path: Path, value: object) -> None:
    writer = ps.create(tmp_path / "a.jsonl", format="jsonl")
    writer.write({"n": 1})
    with pytest.raises(ConfigError, match="JSON"):
        writer.write({"n": value})
    writer.write({"n": 2})
    writer.commit()
    assert [sample["n"] for sample in ps.open(tmp_path / "a.jsonl")] == [1, 2]


def test_a_sample_that_holds_itself(tmp_path: Path) -> None:
    sample: dict[str, Any] = {}
    sample["self"] = sample
    with pytest.raises(ConfigError), ps.create(tmp_path / "a.jsonl", format="jsonl") as writer:
        writer.write(sample)
    assert list(tmp_path.iterdir()) == []


def test_bytes_do_not_depend_on_when_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [{"n": n, "text": "x" * n} for n in range(300)]
    whole = write(tmp_path / "a.jsonl", samples)
    replace(monkeypatch, "jsonl_flush_bytes", 100)
    assert write(tmp_path / "b.jsonl", samples) == whole
    assert (tmp_path / "a.idx").read_bytes() == (tmp_path / "b.idx").read_bytes()
    assert whole == b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in samples)


def test_an_index_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.idx").write_bytes(b"mine")
    with pytest.raises(ConfigError):
        write(tmp_path / "a.jsonl", [{}])
    assert os.listdir(tmp_path) == ["a.idx"]


def test_a_crash_while_overwriting_leaves_no_file_beside_a_wrong_index(tmp_path: Path) -> None:
    old, new = [{"n": 1}, {"n": 22}], [{"m": "longer"}, {"m": "lines"}, {"m": ""}]

    def overwrite(store: Any, path: Path) -> None:
        chosen = ps.formats.get_format("jsonl")
        with chosen.create(store, str(path), {}, overwrite=True) as writer:
            for sample in new:
                writer.write(sample)

    write(tmp_path / "0.jsonl", old)
    total = count_operations(lambda store: overwrite(store, tmp_path / "0.jsonl"))
    for n in range(1, total + 1):
        path = tmp_path / f"{n}.jsonl"
        write(path, old)
        pid = os.fork()
        if pid == 0:
            overwrite(FaultStore(n, "kill"), path)
            os._exit(0)
        os.waitpid(pid, 0)
        assert list(ps.open(path)) in (old, new), f"killed at {n} of {total}"
        assert not [one for one in ps.verify(path, depth="full") if one.severity == "error"]


def test_unknown_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="flavor"):
        ps.create(tmp_path / "a.jsonl", format="jsonl", colour="red")
    with pytest.raises(ConfigError, match="modalities"):
        ps.create(tmp_path / "a.jsonl", format="jsonl", flavor="nosuch")
    assert write(tmp_path / "a.jsonl", [{}], flavor="modalities") == b"{}\n"


def test_manifest(tmp_path: Path) -> None:
    with ps.create(tmp_path / "a.jsonl", format="jsonl") as writer:
        writer.write({"n": 1})
        manifest = writer.commit()
    assert (manifest.num_samples, manifest.size_bytes) == (1, 8)
    source: Any = ps.open(tmp_path / "a.jsonl")
    assert source.manifest == manifest
    assert LocalStore().size(str(tmp_path / "a.jsonl")) == 8


def test_lines_as_they_are(tmp_path: Path) -> None:
    lines = [b"{ }", b"", b"not json \xff", b'{"a": NaN}\r']
    data = np.frombuffer(b"".join(line + b"\n" for line in lines), np.uint8)
    with ps.create(tmp_path / "a.jsonl", format="jsonl") as writer:
        writer.write({"n": 1})
        writer.write_run(data[:4], np.array([4]))
        writer.write_run(data[4:], np.array([len(line) + 1 for line in lines[1:]]))
        writer.write_run(data[:0], np.empty(0, np.int64))
        writer.write({"n": 2})
    assert (tmp_path / "a.jsonl").read_bytes() == b'{"n":1}\n' + data.tobytes() + b'{"n":2}\n'
    raw: Any = ps.open(tmp_path / "a.jsonl", raw=True)
    assert [raw[i]["line"] for i in range(len(raw))] == [b'{"n":1}', *lines, b'{"n":2}']
    assert raw.line_ranges()[1].tolist() == [8, 3]


def test_lines_and_lengths_that_differ(tmp_path: Path) -> None:
    data = np.frombuffer(b"1\n2\n", np.uint8)
    with ps.create(tmp_path / "a.jsonl", format="jsonl") as writer:
        for lengths in ([4, 4], [2], [1, 3], [0, 2, 2], []):
            with pytest.raises(ConfigError, match="differ"):
                writer.write_run(data, np.array(lengths, np.int64))
    assert (tmp_path / "a.jsonl").read_bytes() == b""
