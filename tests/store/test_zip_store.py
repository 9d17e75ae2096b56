"""A zip file as a store: what it holds is read, what it claims is not believed."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path

import pytest

from penstock.codec.parts import DecodeOptions, decode_part
from penstock.errors import Corrupt, NotFound, PenstockError, TooLarge, Truncated, Unsupported
from penstock.store.local import LocalStore
from penstock.store.zip_store import ZipStore
from penstock.testing import CountingStore, StoreSuite

FILES = {"a/b.bin": bytes(range(256)) * 40, "a/c": b"", "d": b"text" * 1000, "../up": b"x", "é": b"name"}


def make(path: Path, method: int = zipfile.ZIP_STORED, files: dict[str, bytes] | None = None) -> ZipStore:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in (FILES if files is None else files).items():
            file.writestr(name, data)
    return ZipStore(LocalStore(), str(path))


class TestZipStore(StoreSuite):
    writes = False

    @pytest.fixture
    def store(self, tmp_path: Path) -> ZipStore:
        return make(tmp_path / "x.zip", files={"other": b""})

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        return f"{tmp_path}/x.zip/folder"

    def put(self, store: ZipStore, path: str, data: bytes) -> None:
        with zipfile.ZipFile(store._path, "a") as file:
            file.writestr(path.removeprefix(f"{store._path}/"), data)
        store._found = None  # a zip file that is read does not change


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members(tmp_path: Path, method: int) -> None:
    store = make(tmp_path / "x.zip", method)
    root = str(tmp_path / "x.zip")
    for name, data in FILES.items():
        path = f"{root}/{name}"
        assert store.get(path) == data
        assert store.get(path, 3, 5) == data[3:8]
        assert store.get(path, len(data) + 5) == b""
        assert store.size(path) == len(data)
    assert store.get_ranges(f"{root}/d", [(0, 4), (6, 9), (5, 5)]) == [b"text", b"xtt", b""]
    with pytest.raises(Truncated):
        store.get_ranges(f"{root}/d", [(0, 4001)])
    assert list(store.list(root)) == sorted((f"{root}/{name}" for name in FILES), key=str.encode)
    assert list(store.list(f"{root}/a")) == [f"{root}/a/b.bin", f"{root}/a/c"]
    assert store.is_folder(root)
    assert store.is_folder(f"{root}/a")
    assert not store.is_folder(f"{root}/d")
    assert (store.exists(f"{root}/a"), store.exists(f"{root}/d"), store.exists(f"{root}/z")) == (True, True, False)
    with pytest.raises(NotFound):
        store.get(f"{root}/z")
    for refused in (lambda: store.stage(f"{root}/new"), lambda: store.delete(f"{root}/d")):
        with pytest.raises(Unsupported, match="read-only"):
            refused()
    assert pickle.loads(pickle.dumps(store)).get(f"{root}/d", 0, 4) == b"text"


def test_what_lies_beside_is_the_other_stores(tmp_path: Path) -> None:
    store = make(tmp_path / "x.zip")
    staged = store.stage(str(tmp_path / "x.zip.penstock"))
    staged.write(b"{}")
    store.commit([staged])
    assert store.get(str(tmp_path / "x.zip.penstock")) == b"{}"
    assert store.exists(str(tmp_path / "x.zip.penstock"))
    store.delete(str(tmp_path / "x.zip.penstock"))
    assert not (tmp_path / "x.zip.penstock").exists()


def test_a_range_of_a_stored_member_reads_its_bytes_alone(tmp_path: Path) -> None:
    make(tmp_path / "x.zip", files={"a": bytes(1 << 20), "b": b"1"})
    counting = CountingStore(LocalStore())
    store = ZipStore(counting, str(tmp_path / "x.zip"))
    store.size(f"{tmp_path}/x.zip/a")
    before = counting.read_bytes
    for start in range(0, 1 << 20, 1 << 17):
        store.get(f"{tmp_path}/x.zip/a", start, 100)
    assert counting.read_bytes - before == 8 * (100 + 30 + len("a"))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_cut_and_damaged_files(tmp_path: Path, place: int) -> None:
    make(tmp_path / "x.zip", zipfile.ZIP_DEFLATED, {"a": bytes(range(256)) * 100})
    whole = (tmp_path / "x.zip").read_bytes()
    for data in (
        whole[: len(whole) * place // 3],
        whole[:60] + b"\xff\xff\xff" + whole[63:],
        b"PK\x03\x04" + whole[:9],
    ):
        (tmp_path / "y.zip").write_bytes(data)
        with pytest.raises(PenstockError):
            ZipStore(LocalStore(), str(tmp_path / "y.zip")).get(f"{tmp_path}/y.zip/a")


def test_a_size_that_no_member_can_have(tmp_path: Path) -> None:
    make(tmp_path / "x.zip", zipfile.ZIP_DEFLATED, {"a": bytes(1000)})
    data = bytearray((tmp_path / "x.zip").read_bytes())
    directory = data.index(b"PK\x01\x02")
    for method, size_bytes in ((8, 0xFFFF_FFF0), (0, 0x7FFF_FFFF)):
        data[directory + 10 : directory + 12] = struct.pack("<H", method)
        data[directory + 24 : directory + 28] = struct.pack("<I", size_bytes)
        data[8:10], data[22:26] = data[directory + 10 : directory + 12], data[directory + 24 : directory + 28]
        (tmp_path / "y.zip").write_bytes(data)
        with pytest.raises((TooLarge, Truncated)):
            ZipStore(LocalStore(), str(tmp_path / "y.zip")).get(f"{tmp_path}/y.zip/a")


def test_other_compressions_are_named(tmp_path: Path) -> None:
    store = make(tmp_path / "x.zip", zipfile.ZIP_BZIP2)
    with pytest.raises(Unsupported, match="compression 12"):
        store.get(f"{tmp_path}/x.zip/d")


def test_a_member_that_is_stored_is_held_against_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    make(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"texttext") + 99] ^= 1
    path.write_bytes(data)
    store = ZipStore(LocalStore(), str(path))
    assert store.get(f"{path}/d", 0, 8) == b"texttext"
    with pytest.raises(Corrupt, match="checksum"):
        store.get(f"{path}/d")


def test_a_member_that_expands_to_too_much(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    store = make(path, zipfile.ZIP_DEFLATED, {"small": bytes(1 << 20), "big": bytes(40 << 20)})
    assert len(store.get(f"{path}/small")) == 1 << 20
    with pytest.raises(TooLarge, match="expands too far"):
        store.get(f"{path}/big")


def test_a_list_of_members_that_lies_before_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    make(path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, len(data) - 6, (1 << 32) - 1)
    path.write_bytes(data)
    store = ZipStore(LocalStore(), str(path))
    with pytest.raises(Corrupt):
        store.get(f"{path}/d")


def test_members_that_share_bytes(tmp_path: Path) -> None:
    """A thousand names for one megabyte would be a gigabyte of tokens; and a member may hold the header of another."""
    path = tmp_path / "x.zip"
    make(path, files={"a": b"x" * 1000, "b": b"y" * 1000})
    data = bytearray(path.read_bytes())
    entries = [place for place in range(len(data)) if data[place : place + 4] == b"PK\x01\x02"]
    assert len(entries) == 2
    data[entries[1] + 42 : entries[1] + 46] = bytes(4)  # where its header is: that of the other
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="overlap"):
        ZipStore(LocalStore(), str(path)).get(f"{path}/b")
    inside = make(tmp_path / "inside.zip", files={"c": b"z" * 100})._path
    make(path, files={"a": Path(inside).read_bytes()[:131], "b": b"y"})
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)
    data[entry + 20 : entry + 28] = struct.pack("<II", 100, 100)
    data[entry + 42 : entry + 46] = struct.pack("<I", data.index(b"PK\x03\x04", 4))
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="overlap"):
        ZipStore(LocalStore(), str(path)).get_ranges(f"{path}/b", [(0, 10)])


@pytest.mark.parametrize(
    ("at", "value"),
    [(8, struct.pack("<H", 8)), (14, bytes(4)), (18, struct.pack("<I", 99)), (22, struct.pack("<I", 1)), (30, b"c")],
    ids=["method", "checksum", "stored bytes", "bytes", "name"],
)
def test_a_list_that_says_otherwise_than_the_header(at: int, value: bytes, tmp_path: Path) -> None:
    """A range of a member has no checksum: it is read where the list says, if the header there is of this member."""
    path = tmp_path / "x.zip"
    make(path, files={"a": b"x" * 1000})
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    path.write_bytes(data)
    store = ZipStore(LocalStore(), str(path))
    with pytest.raises(Corrupt, match="contradicts its own header"):
        store.get_ranges(f"{path}/a", [(0, 10)])


def test_sizes_of_zip64_and_sizes_that_follow(tmp_path: Path) -> None:
    """Both are of honest writers: the header says nothing of its sizes, or says that others have them."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file, file.open("a", "w", force_zip64=True) as member:
        member.write(b"x" * 1000)
    assert ZipStore(LocalStore(), str(path)).get_ranges(f"{path}/a", [(998, 1000)]) == [b"xx"]

    class Pipe:
        """What can't go back to say how long a member was."""

        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            self.data += data
            return len(data)

        def flush(self) -> None: ...

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as file:  # type: ignore[call-overload]
        file.writestr("a", b"x" * 1000)
    path.write_bytes(pipe.data)
    assert ZipStore(LocalStore(), str(path)).get_ranges(f"{path}/a", [(998, 1000)]) == [b"xx"]


def test_a_member_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    nameless = zipfile.ZipInfo("x")
    nameless.filename = ""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("b", b"data")
        file.writestr(nameless, b"data")
    with pytest.raises(Corrupt, match=r"not a complete zip file.*a member without a name"):
        ZipStore(LocalStore(), str(path)).size(f"{path}/b")
    with pytest.raises(Corrupt, match="a member without a name"):
        decode_part("x.npz", path.read_bytes(), DecodeOptions())
