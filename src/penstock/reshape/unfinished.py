"""What an earlier run of the same job left behind."""

from __future__ import annotations

from penstock._digest import digest
from penstock.engine.folder import WorkFolder, work_beside
from penstock.engine.shared import work_folder
from penstock.errors import ConfigError
from penstock.formats._last_files import last_file
from penstock.reshape.origins import Along
from penstock.store.derived import upload_folder
from penstock.store.local import LocalStore
from penstock.store.object_folder import take_back
from penstock.store.place import Place
from penstock.store.powers import FolderStore
from penstock.store.unfinished import Once
from penstock.types import Manifest


def sweep_unfinished(output: Place) -> None:
    """Remove what a killed run of version 0.2 left of its pieces, unless another run uses them.

    Raises:
        ConfigError: a job in parts is unfinished, which an inline run can't continue.
    """
    if work_folder(output.bare(), inside=False).is_there():
        raise ConfigError(
            "a distributed job for this output is unfinished",
            path=output.path,
            hint="Finish it with the command that started it, or discard it: --finish --no-work --restart",
        )
    folder = _pieces(output)
    if folder.is_there():
        with folder.tried() as had:
            if had:
                folder.clear()
                folder.drop()


def _pieces(output: Place) -> WorkFolder:
    if output.is_local:
        return work_beside(output.bare(), "pieces", _is_piece)
    place = Place(LocalStore(), upload_folder()).child(f".{digest(output.path)}.pieces")
    return WorkFolder(LocalStore(), place.path, _is_piece)


def _is_piece(name: str) -> bool:
    return name.endswith(".piece")


def goes_on(along: Along, part: Once[Manifest], overwrite: bool) -> bool:
    """Return whether to replace an output, one of several, that an earlier run of the same job may have made."""
    own = part.published(None) is not None
    last = last_file(along.format, part.store, part.path)
    if own and last is not None and not isinstance(part.store, FolderStore):
        take_back(part.store, last)  # it can't be replaced in one step there
        return overwrite
    return overwrite or own
