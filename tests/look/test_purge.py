"""Purged folders."""

from pathlib import Path

from tests.internals import purge

import penstock as ps


def test_every_file_of_a_folder_is_kept(tmp_path: Path) -> None:
    folder, output = tmp_path / "in", tmp_path / "out"
    contents = {".hidden": b"h", ".git/config": b"c", "README": b"r", "a.txt": b"a", "b.txt": b"b", "sub/.x": b"x"}
    contents["a.d/c.txt"] = b"d"
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    ps.exclude(folder, key=["b.txt"], reason="test", format="folder")
    assert purge(folder, output, format="folder", to="folder").removed == 1
    found = {str(one.relative_to(output)): one.read_bytes() for one in output.rglob("*") if one.is_file()}
    del found[".penstock"], contents["b.txt"]
    assert found == contents
