"""verify and repair: each fault by its own finding, and what can be mended."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import main, write_side_file

import penstock as ps
from penstock.check import repair, verify
from penstock.errors import Corrupt, NotFound, PenstockError

DOCS = [[300, 2, 7], [7], [], [5, 0, 1, 7]]

FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("megatron.header", {"index": b"MMIDIDX\0\0\1\0"}),
    ("megatron.version", {"version": 2}),
    ("megatron.dtype", {"code": 9}),
    ("megatron.documents", {"borders": []}),
    ("megatron.documents", {"borders": [1, 2, 3, 3, 4]}),
    ("megatron.documents", {"borders": [0, 3, 2, 3, 4]}),
    ("megatron.documents", {"borders": [0, 1, 2, 3, 3]}),
    ("megatron.documents", {"borders": [0, 1, 2, 3, 5]}),
    ("megatron.index-size", {"counts": (5, 5)}),
    ("megatron.index-size", {"counts": (1 << 62, 1 << 62)}),
    ("megatron.sequence", {"lengths": [3, -1, 2, 4], "pointers": [0, 6, 4, 8]}),
    ("megatron.sequence", {"pointers": [0, 7, 8, 8]}),
    ("megatron.sequence", {"pointers": [0, -2, 8, 8]}),
    ("megatron.sequence", {"pointers": [0, 1 << 40, 8, 8]}),
    ("megatron.overlap", {"pointers": [0, 0, 0, 0], "lengths": [8, 8, 8, 8]}),
    ("megatron.truncated", {"data": b"\0" * 14}),
    ("megatron.trailing", {"data": b"\0" * 18}),
]


def codes(prefix: str, **options: Any) -> list[str]:
    return sorted({one.code for one in verify(prefix, format="megatron", depth="full", **options)})


def read_everything(prefix: str) -> None:
    source: Any = ps.open(prefix, format="megatron")
    source.tokens(0, source.num_tokens)
    source.get_batch(range(len(source)))


@pytest.mark.parametrize(("code", "fault"), FAULTS)
def test_each_fault_has_its_finding(put: Any, code: str, fault: dict[str, Any]) -> None:
    prefix = put(DOCS, **fault)
    for depth in ("quick", "sample", "full"):
        findings = verify(prefix, format="megatron", depth=depth)
        assert code in [one.code for one in findings]
        for one in findings:
            assert one.severity == "error"
            assert one.fix
            assert one.path.startswith(prefix)
    with pytest.raises(PenstockError) as caught:
        read_everything(prefix)
    assert caught.value.path is not None


def test_what_the_original_reads_is_no_error(put: Any) -> None:
    data = np.zeros(8, "<u2").tobytes()
    for fault, code in (
        ({"data": data, "lengths": [2, 2], "pointers": [8, 0], "borders": [0, 1, 2]}, "megatron.apart"),
        ({"data": data, "lengths": [2, 2], "pointers": [0, 12], "borders": [0, 2]}, "megatron.apart"),
        ({"data": b"", "lengths": [], "pointers": [], "borders": [0]}, "megatron.empty"),
    ):
        prefix = put(DOCS, **fault)
        assert [(one.code, one.severity) for one in verify(prefix, depth="full")] == [(code, "warning")]


def test_lengths_without_eos_are_an_error_at_open_with_repairs_that_work(
    put: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = np.array([1, 2, 3, 9, 4, 5, 9, 6, 9], "<u2")
    prefix = put(DOCS, data=tokens.tobytes(), lengths=[3, 2, 1], pointers=[0, 6, 10], borders=[0, 1, 2, 3])
    with pytest.raises(Corrupt, match="6 bytes after its last sequence") as caught:
        ps.open(prefix)
    assert repair(prefix, write=True) == []
    repairs, shorter = re.findall(r"`((?:penstock repair|truncate) [^`]*)`", str(caught.value))
    with pytest.raises(SystemExit) as ended:
        main([*repairs.removeprefix("penstock ").replace("ID", "9").split(), "--write"])
    assert ended.value.code == 0, capsys.readouterr()
    assert [one["tokens"].tolist() for one in ps.open(prefix)] == [[1, 2, 3, 9], [4, 5, 9], [6, 9]]
    os.replace(prefix + ".idx.bak", prefix + ".idx")
    subprocess.run(shlex.split(shorter), check=True)
    assert [one["tokens"].tolist() for one in ps.open(prefix)] == [[1, 2, 3], [9, 4], [5]]


def test_what_a_repair_leaves_out_on_purpose_is_a_warning_until_the_tokens_change(put: Any) -> None:
    prefix = put([[1, 2, 9], [3, 9], [4, 4]])
    os.unlink(prefix + ".idx")
    repair(prefix, format="megatron", write=True, eos_id=9, layout="uint16")
    assert [(one.code, one.severity) for one in verify(prefix, depth="full")] == [("megatron.trailing", "warning")]
    assert [one["tokens"].tolist() for one in pickle.loads(pickle.dumps(ps.open(prefix)))] == [[1, 2, 9], [3, 9]]
    with open(prefix + ".bin", "ab") as file:
        file.write(b"\1\0\7\0")
    with pytest.raises(Corrupt, match="8 bytes after its last sequence"):
        ps.open(prefix)


def test_the_command_that_rebuilds_a_missing_index_works(put: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = put([[1, 2, 9], [3, 9]], dtype="int32")
    os.unlink(prefix + ".idx")
    (finding,) = verify(prefix + ".bin", format="megatron")
    (command,) = re.findall(r"`penstock (repair [^`]*)`", finding.fix or "")
    with pytest.raises(SystemExit) as ended:
        main([*command.replace(" ID", " 9").replace("DTYPE", "int32").split(), "--write"])
    assert ended.value.code == 0, capsys.readouterr()
    assert [one["tokens"].tolist() for one in ps.open(prefix)] == [[1, 2, 9], [3, 9]]


def test_missing_files(put: Any, tmp_path: Path) -> None:
    prefix = put()
    os.unlink(prefix + ".bin")
    assert codes(prefix) == ["megatron.missing"]
    with pytest.raises(NotFound):
        verify(tmp_path / "nothing", format="megatron")


def test_ids_and_ends(put: Any) -> None:
    prefix = put([[300, 2, 7], [7], [5, 0, 1, 7]], dtype="int32")
    assert codes(prefix) == []
    assert codes(prefix, vocab_size=301, eos_id=7) == []
    assert codes(prefix, vocab_size=300) == ["megatron.token-range"]
    assert codes(prefix, eos_id=1) == ["megatron.no-eos"]
    apart = put([[300, 2, 7], [7]], lengths=[1, 3], pointers=[6, 0], borders=[0, 1, 2], name="b")
    assert codes(apart, vocab_size=300, eos_id=7) == ["megatron.apart", "megatron.token-range"]


def test_a_side_file_finds_flipped_bits(put: Any) -> None:
    prefix = put([[1] * 5000] * 10)
    assert write_side_file(prefix) == prefix + ".idx.penstock"
    assert codes(prefix) == []
    data = bytearray(Path(prefix + ".bin").read_bytes())
    data[50_000] ^= 1
    Path(prefix + ".bin").write_bytes(data)
    assert verify(prefix) == []
    assert "megatron.digest" in codes(prefix)
    data[0] ^= 1
    Path(prefix + ".bin").write_bytes(data)
    assert "megatron.changed" in codes(prefix)
    Path(prefix + ".bin").write_bytes(data + b"\0\0")
    [changed] = [one for one in verify(prefix, depth="quick") if one.code == "megatron.changed"]
    assert (changed.severity, changed.path) == ("error", prefix + ".bin")


# --- repair ----------------------------------------------------------------------------------------------------------


def mended(prefix: str, **options: Any) -> list[list[int]]:
    """The documents after a repair, which is listed before it is done."""
    before = Path(prefix + ".idx").read_bytes() if os.path.exists(prefix + ".idx") else None
    listed = repair(prefix, format="megatron", **options)
    assert [one.done for one in listed] == [False]
    assert before is None or Path(prefix + ".idx").read_bytes() == before
    data = Path(prefix + ".bin").read_bytes()
    done = repair(prefix, format="megatron", write=True, **options)
    assert [(one.code, one.done) for one in done] == [("megatron.index", True)]
    assert Path(prefix + ".bin").read_bytes() == data
    assert before is None or Path(prefix + ".idx.bak").read_bytes() == before
    assert [one for one in verify(prefix, depth="full") if one.severity == "error"] == []
    return [sample["tokens"].tolist() for sample in ps.open(prefix)]


def test_pointers_follow_from_lengths(put: Any) -> None:
    assert mended(put(DOCS, pointers=[0, 7, 8, 1 << 40])) == DOCS


def test_documents_follow_from_sequences(put: Any) -> None:
    assert mended(put(DOCS, borders=[0, 3, 2, 3, 4])) == DOCS


def test_whole_documents_of_a_cut_file_are_kept(put: Any) -> None:
    assert mended(put(DOCS, data=np.array([300, 2, 7, 7, 5], "<u2").tobytes())) == DOCS[:3]


def test_a_document_is_kept_or_left_out_as_a_whole(put: Any) -> None:
    data = np.array([1, 2, 3, 4, 5, 6], "<u2").tobytes()
    prefix = put(data=data[:-2], lengths=[1, 2, 1, 2], pointers=[0, 2, 6, 8], borders=[0, 2, 4], modes=[5, 6, 7, 8])
    assert mended(prefix) == [[1, 2, 3]]
    source: Any = ps.open(prefix)
    assert source.modes.tolist() == [5, 6]


@pytest.mark.parametrize("damage", ["gone", "cut", "lengths"])
def test_the_index_is_rebuilt_from_eos(put: Any, damage: str) -> None:
    prefix = put([[300, 2, 7], [7], [5, 0, 1, 7], [4, 4]])
    whole = Path(prefix + ".idx").read_bytes()
    options: dict[str, Any] = {"eos_id": 7}
    if damage == "gone":
        os.unlink(prefix + ".idx")
        options["layout"] = "uint16"
    elif damage == "cut":
        Path(prefix + ".idx").write_bytes(whole[:50])
    else:
        Path(prefix + ".idx").write_bytes(whole[:34] + b"\xff" * 8 + whole[42:])
    assert repair(prefix, format="megatron", **(options | {"eos_id": None})) == []
    assert mended(prefix, **options) == [[300, 2, 7], [7], [5, 0, 1, 7]]


def test_the_side_file_tells_dtype_and_eos(tmp_path: Path) -> None:
    prefix = str(tmp_path / "a")
    with ps.create(prefix, format="megatron", dtype="int32", eos_id=7, tokenizer="mine") as writer:
        for doc in ([300, 2, 7], [7], [5, 0, 1, 7]):
            writer.write({"tokens": doc})
    before = Path(prefix + ".idx").read_bytes()
    os.unlink(prefix + ".idx")
    assert mended(prefix) == [[300, 2, 7], [7], [5, 0, 1, 7]]
    assert Path(prefix + ".idx").read_bytes() == before
    source: Any = ps.open(prefix)
    assert (source.eos_id, source.manifest.tokenizer) == (7, "mine")


def test_what_nobody_can_mend_is_left_alone(put: Any) -> None:
    prefix = put([[1, 2], [3]], "int64", code=9)
    before = Path(prefix + ".idx").read_bytes()
    assert repair(prefix, format="megatron", write=True, eos_id=99) == []
    assert Path(prefix + ".idx").read_bytes() == before
