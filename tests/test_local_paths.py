"""Never again may a URL become a path of this machine: who joins paths, and who opens or makes files by name, is known.

Beside the stores, whose work it is, each module is listed with the reason why what it touches can't be a URL.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.store.local import LocalStore

SRC = Path(__file__).parent.parent / "src" / "penstock"

_JOINS = ("join", "split", "dirname", "basename", "relpath", "normpath", "abspath", "realpath", "expanduser")
TOUCHES = {
    *(f"os.path.{name}" for name in _JOINS),
    *("open", "io.open", "os.open", "os.makedirs", "os.mkdir", "os.rename", "os.replace", "os.link", "os.symlink"),
    *("os.unlink", "os.remove", "os.rmdir", "os.listdir", "os.walk", "os.scandir", "Path", "pathlib.Path"),
    *("shutil.copy", "shutil.copyfile", "shutil.copytree", "shutil.move", "shutil.rmtree", "LocalStore"),
    *("tempfile.TemporaryFile", "tempfile.TemporaryDirectory", "tempfile.mkdtemp", "tempfile.mkstemp"),
}
_LAST_NAME = "takes the last name of a path or URL, which has slashes alike"
_BESIDE = "joins a name to what stands before the last slash of a path or URL, which is right for both"
_TOKENIZER = "a tokenizer is on this machine: `local_path` refuses another"
_MODALITIES = "the original's commands take paths: `local_path` refuses another"
_STREAMING = "the local folder of a stream or writer: `local_path` refuses another"
_SCRATCH = "a scratch file of its own, in the folder for these"
_PART = "the file of a part on this machine, which our own work made"
_LOOKED_AT = "looks into a folder of which `is_local`, or LocalStore, was asked"
KNOWN: dict[str, str] = {
    "formats/_excluded.py": "lists beside the files of a dataset on this machine",
    "cli/check.py": "looks at the first bytes of a file; a URL is not one, and is verified as a dataset",
    "_settings.py": "the settings file is on this machine",
    "_printable.py": "compares paths that were made absolute, which URLs never are",
    "_regular.py": "where files of this machine are opened; the local store and tokenizers come here",
    "cli/_output.py": "what the system says of our processes",
    "cli/modalities.py": "`local_path` came before",
    "cli/_errors.py": "looks for names beside a path that is not there; nothing is opened or made",
    "cli/_machine.py": "the working folder and the cache folder",
    "cli/start.py": "what a shell completes is on this machine; `local_path` came before",
    "cli/main.py": "the null device",
    "compat/energon/epathlib/__init__.py": "`local_path` asks `is_local` first",
    "compat/energon/loader.py": _SCRATCH,
    "compat/energon/worker.py": "`local_path` came before",
    "compat/modalities/embedded.py": _MODALITIES,
    "compat/modalities/commands/config.py": _MODALITIES,
    "compat/modalities/commands/data.py": _MODALITIES,
    "compat/modalities/commands/instruct.py": _MODALITIES,
    "compat/modalities/commands/pack.py": _MODALITIES,
    "compat/modalities/lines.py": _MODALITIES,
    "compat/modalities/packed.py": _MODALITIES,
    "compat/streaming/epochs.py": _SCRATCH,
    "compat/streaming/util.py": "shared memory of this machine",
    "compat/streaming/writers.py": _STREAMING,
    "engine/sample_groups.py": _PART,
    "convert/tables.py": "a file of which `is_local` was asked, or the local copy of a remote one",
    "convert/tokens.py": "a target of which `is_local` was asked",
    "executors/processes.py": "what the system says of memory",
    "executors/on_ray.py": _SCRATCH,
    "executors/seen.py": "looks whether another host sees the same files: of places whose `is_local` was asked",
    "formats/_planes.py": _LOOKED_AT,
    "formats/_folders.py": _LOOKED_AT,
    "formats/_unrecognised.py": _LOOKED_AT,
    "formats/jsonl/build.py": _BESIDE,
    "formats/jsonl/energon.py": _LAST_NAME,
    "formats/jsonl/index.py": _BESIDE,
    "formats/jsonl/several.py": "sorts paths, and asks what several have in common: URLs of one store too",
    "formats/jsonl/text.py": _BESIDE,
    "formats/samples/folder/check.py": _SCRATCH,
    "formats/samples/sqlite.py": "a database of this machine, or the local copy of a remote one",
    "formats/samples/webdataset/dataset_yaml.py": _BESIDE,
    "formats/samples/webdataset/key_index.py": _SCRATCH,
    "formats/samples/webdataset/repair.py": _SCRATCH,
    "formats/samples/webdataset/sqlite_index.py": _SCRATCH,
    "formats/shards/find_index.py": _LAST_NAME,
    "formats/tables/hf.py": _LOOKED_AT,
    "formats/tables/parquet.py": _LOOKED_AT,
    "formats/tokens/flat_tokens/repair.py": "the folder of a staged array, which is local",
    "formats/tokens/folder/files.py": _LOOKED_AT,
    "formats/tokens/folder/found.py": _LOOKED_AT,
    "formats/tokens/folder/source.py": _LAST_NAME,
    "formats/tokens/megatron/kept.py": _LAST_NAME,
    "formats/tokens/megatron/publish.py": _LAST_NAME,
    "formats/tokens/megatron/layout.py": _BESIDE,
    "formats/tokens/pbin/source.py": "only of a file on this machine: a mapped one",
    "formats/tokens/writer.py": _PART,
    "load/messages.py": _SCRATCH,
    "prepare/media/index.py": _SCRATCH,
    "prepare/media/run.py": _SCRATCH,
    "engine/token_files.py": _PART,
    "prepare/tokens/vocabulary.py": _TOKENIZER,
    "prepare/tokens/inputs.py": "walks over folders of this machine: `local_path` refuses another",
    "prepare/tokens/engines.py": _TOKENIZER,
    "prepare/tokens/pipeline.py": "where no store is given the output is a path: `local_place` refuses another",
    "prepare/tokens/model_files.py": _TOKENIZER,
    "prepare/tokens/tokenizer.py": _TOKENIZER,
    "recipe/places.py": "joins paths by the rules of recipes, and tells URLs apart itself",
    "mix/repeats.py": "compares paths with links resolved, and leaves URLs as they are",
    "reshape/reorder.py": _SCRATCH,
    "reshape/dataset_job.py": "what version 0.2 left of its pieces is on this machine",
    "view/mount.py": "the mount point: `local_path` refuses another",
    "view/pages/jobs.py": _SCRATCH,
    "engine/folder.py": "a work folder is local where `is_local` was asked",
    "engine/work.py": "walks over a work folder of a local store",
}


def touched() -> Iterator[tuple[str, str]]:
    for path in sorted(SRC.rglob("*.py")):
        name = path.relative_to(SRC).as_posix()
        if not name.startswith(("store/", "testing/")):
            text = path.read_text()
            for node in ast.walk(ast.parse(text if any(f"{call}(" in text for call in TOUCHES) else "")):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in TOUCHES:
                    yield name, f"{ast.unparse(node.func)} in line {node.lineno}"


def test_who_touches_paths_of_this_machine_is_known() -> None:
    found: dict[str, list[str]] = {}
    for name, what in touched():
        found.setdefault(name, []).append(what)
    unknown = {name: what for name, what in found.items() if name not in KNOWN}
    assert not unknown, "ask a Place or a Store instead, or say here why it can't be a URL"


@pytest.mark.parametrize(
    "path", ["s3://b/x", "s3:/b/x", "here/s3:/b/x", "/a/https:/host/x", "HTTP://host/x", "az://c/x", "/x/hf:/y"]
)
def test_a_url_that_got_through_makes_no_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore()
    for start in (store.stage, store.stage_folder, store.claim):
        with pytest.raises(ConfigError, match="a URL instead of a local path"):
            start(path)
    assert list(tmp_path.iterdir()) == []


def test_names_with_colons_are_names(tmp_path: Path) -> None:
    for name in ("a:b", "as3:", "c:/d", "x.s3:y/z"):
        staged = LocalStore().stage(str(tmp_path / name))
        staged.write(b"1")
        staged.commit()
        assert (tmp_path / name).read_bytes() == b"1"
