"""A path that can't be looked at is not taken for one where nothing is."""

import ast
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.store._files import is_file, is_folder, is_free, is_link, is_there, leads_somewhere, remove_tree
from penstock.store.exclude_list import list_above
from penstock.store.local import LocalStore
from penstock.store.outputs import output_path, require_file_or_none
from penstock.store.place import place_of

_HIDING = {"exists", "lexists", "isdir", "isfile", "islink"}
_MAY_HIDE = {
    "store/_credentials.py": "looks where the user's key file might be",
    "store/_remote_output.py": "a lock in the cache that can't be looked at is taken when it is held",
    "store/cache_room.py": "of a copy in the cache",
    "store/derived.py": "of a file in the cache, which is computed again",
    "store/dry.py": "a rehearsal: the work itself says it",
    "store/hub_cache.py": "a name of a tokenizer that is no path",
    "formats/samples/sqlite.py": "finds the words for an error that was met",
}


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of which every `stat` fails."""
    path = str(tmp_path / "hidden")
    Path(path).write_bytes(b"{}")

    def failing(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def ask(of: object, *args: object, **options: object) -> os.stat_result:
            if isinstance(of, str) and of == path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return real(of, *args, **options)

        return ask

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    return path


@pytest.mark.parametrize(
    "ask",
    [
        is_there,
        is_link,
        is_folder,
        is_file,
        leads_somewhere,
        is_free,
        lambda path: remove_tree(os, path),
        lambda path: output_path(LocalStore(), path),
        lambda path: require_file_or_none(LocalStore(), path),
        lambda path: LocalStore().stage(path),
        lambda path: LocalStore().exists(path),
        lambda path: place_of(path).is_file(),
        lambda path: place_of(path).is_link(),
        lambda path: penstock.create(path, format="mds", columns={"text": "str"}),
    ],
)
def test_a_path_that_cannot_be_looked_at(ask: Callable[[str], object], hidden: str) -> None:
    with pytest.raises(OSError, match="hidden") as met:
        ask(hidden)
    assert met.value.errno == errno.EIO


def test_a_list_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a verb would copy on what the list names."""
    data, real = tmp_path / "data.jsonl", os.lstat
    data.write_bytes(b"{}\n")

    def ask(of: object, *args: object, **options: object) -> os.stat_result:
        if isinstance(of, str) and of.endswith("exclude.jsonl") and os.path.dirname(of) == str(tmp_path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), of)
        return real(of, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "lstat", ask)
    with pytest.raises(OSError, match="exclude"):
        list_above([str(data)])


def test_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for name, target in (("to_file", "file"), ("to_folder", "folder"), ("to_nothing", "nowhere"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
    expected = {
        "file": (True, False, True, False, True),
        "folder": (True, False, True, True, False),
        "to_file": (True, True, True, False, True),
        "to_folder": (True, True, True, True, False),
        "to_nothing": (True, True, False, False, False),
        "loop": (True, True, False, False, False),
        "nothing": (False,) * 5,
        "file/below": (False,) * 5,
        "n" * 300: (False,) * 5,
        "nul\0": (False,) * 5,
    }
    asked = (is_there, is_link, leads_somewhere, is_folder, is_file)
    assert {name: tuple(ask(f"{tmp_path}/{name}") for ask in asked) for name in expected} == expected


def test_only_what_is_named_here_asks_otherwise() -> None:
    package = Path(penstock.__file__).parent
    found = {
        str(path.relative_to(package))
        for part in ("store", "engine", "formats")
        for path in (package / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in _HIDING and ast.unparse(node.value) == "os.path"
    }
    assert found == set(_MAY_HIDE)
