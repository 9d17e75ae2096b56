"""The law of `penstock.compat`: no argument and no override of the originals' is passed over without a word.

Each parameter is read by the function that takes it, or stands in a table with its reason. Each method that the
originals call on a subclass is called here, too, or refused when the object is made.
"""

# pyright: reportUnknownLambdaType=false, reportArgumentType=false

from __future__ import annotations

import ast
import importlib
import inspect
import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.internals import PREPARE_RUN_OPTIONS, command_of

import penstock as ps
from penstock.compat import energon as en
from penstock.compat import modalities, streaming
from penstock.compat.energon import loader as energon_loader
from penstock.compat.energon.samples import pinned
from penstock.compat.streaming import writers
from penstock.errors import ConfigError

COMPAT = Path(ps.__file__).parent / "compat"
GOLDEN = Path(__file__).parent.parent / "golden"
ENERGON = GOLDEN / "energon-loading" / "data" / "ds_a"

# --- arguments -------------------------------------------------------------------------------------------------------

UNREAD = {
    **dict.fromkeys(
        (f"namespace.py:{one}.find_spec:{name}" for one in ("_Table", "_Absent") for name in ("path", "target")),
        "Python's signature of finders",
    ),
    "energon/media/__init__.py:AVDecoder.get_metadata:get_audio_duration": "durations are always read",
    "energon/media/__init__.py:AVDecoder.get_metadata:get_video_duration": "durations are always read",
    "energon/cookers.py:FileStoreDecoder.decode:fname": "abstract: a decoder of the program's own has it",
    "energon/cookers.py:FileStoreDecoder.decode:raw": "abstract, too",
    "energon/walked.py:Shares.__call__:wait": "a producer's signature; a lane never waits, it is asked",
    "energon/walked.py:Walked.restore:handed": "a feed's signature; the state says the place of each lane itself",
    "energon/walks.py:SavableDataset.len_worker:worker_idx": "abstract: each wrapper has it",
    "energon/walks.py:SavableDataset.split:part": "abstract, too",
    "energon/walks.py:SavableDataset.split:parts": "abstract, too",
    "energon/walks.py:SavableDataset.split:place": "abstract, too",
    "energon/walks.py:SavableDataset.walk:lane": "abstract, too",
    "energon/walks.py:SavableDataset.walk:place": "abstract, too",
    "energon/encoded.py:Uncooked.__call__:position": "a cook's signature; what is left as it is has no position in it",
    "energon/encoded.py:Uncooked.cook_all:positions": "as of one",
    "energon/encoder.py:TaskEncoder.batch_group_criterion:sample": "a hook; the default puts all samples in one group",
    "energon/stores.py:FileStore.__getitem__:key": "abstract: a store of the program's own has it",
    "energon/stores.py:Lazy.get:sample": "abstract, too",
    "energon/stores.py:MockLazy.get:sample": "a mock has no source to add",
    "energon/worker.py:_Active.__get__:instance": "a descriptor's signature; what is active is of the thread",
    "energon/worker.py:_Active.__get__:owner": "as of the instance",
    "energon/worker.py:reraise_exception:sample": "a handler's signature; the error names it already, by a note",
    "energon/worker.py:reraise_exception:sources": "as of the sample",
    "streaming/encodings.py:Encoding.decode:data": "abstract: an encoding of the program's own has it",
    "streaming/encodings.py:Encoding.encode:obj": "abstract, too",
    "streaming/local.py:Indexed.get_item:sample_id": "a Protocol",
    "streaming/local.py:Indexed.__getitem__:at": "a Protocol",
}
"""`file:function:parameter` → why it changes nothing."""


def _unread(tree: ast.AST, owner: str = "") -> Iterator[str]:
    """Parameters of public functions that their bodies never read: `del` is no reading. Python calls `__exit__`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _unread(node, f"{owner}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name.startswith("__")):
            if any(getattr(one, "id", None) == "overload" for one in node.decorator_list) or node.name == "__exit__":
                continue
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            inside = [one for line in node.body for one in ast.walk(line) if isinstance(one, ast.Name)]
            read = {one.id for one in inside if isinstance(one.ctx, ast.Load)}
            names = [one.arg for one in given if one is not None and one.arg not in ("self", "cls")]
            yield from (f"{owner}{node.name}:{name}" for name in names if name not in read)


def test_every_parameter_is_read_or_stands_in_the_table() -> None:
    found = {
        f"{file.relative_to(COMPAT)}:{name}"
        for file in COMPAT.rglob("*.py")
        for name in _unread(ast.parse(file.read_text()))
    }
    assert found == set(UNREAD)


UNREAD_IN_FACADE: dict[str, str] = {}
"""`module:function:parameter` → why it changes nothing."""


def test_every_parameter_of_the_facade_is_read_or_stands_in_the_table() -> None:
    named: dict[str, set[str]] = {}
    for name in ps.__all__:
        one: Any = getattr(ps, name)
        if inspect.isclass(one) or inspect.isfunction(one):
            named.setdefault(one.__module__, set()).add(one.__name__)
    found = {
        f"{module}:{one}"
        for module, names in named.items()
        for one in _unread(ast.parse(inspect.getsource(importlib.import_module(module))))
        if one.partition(":")[0].partition(".")[0] in names
    }
    assert len(named) > 20
    assert found == set(UNREAD_IN_FACADE)


def test_the_walk_sees_a_parameter_that_is_only_deleted() -> None:
    tree = ast.parse("class A:\n def __init__(self, a, b=1, *, c=2, **d):\n  del c\n  self.a = a\n  print(d)")
    assert list(_unread(tree)) == ["A.__init__:b", "A.__init__:c"]


def _energon(**more: Any) -> Any:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    given = {"worker_config": config, "batch_size": 2, "task_encoder": Texts(), **more}
    return en.get_train_dataset(ENERGON, **given)


@pytest.mark.parametrize("name", energon_loader._NOT_NEEDED)  # pyright: ignore[reportPrivateUsage]
def test_every_option_of_the_loader_that_changes_nothing_is_said(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        en.get_loader(_energon(), **{name: 77})
    assert f"{name}=77" in caplog.text


@pytest.mark.parametrize("name", writers._UNUSED)  # pyright: ignore[reportPrivateUsage]
def test_every_option_of_a_writer_that_changes_nothing_is_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        streaming.MDSWriter(columns={"a": "int"}, out=str(tmp_path / "a"), progress_bar=False, max_workers=None)
        assert not caplog.messages
        streaming.MDSWriter(columns={"a": "int"}, out=str(tmp_path / "b"), **{name: 77})
    assert f"{name}=77" in caplog.text


def test_merging_says_what_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for part in "ab":
        _shards(tmp_path / part)
    with caplog.at_level(logging.WARNING):
        streaming.merge_index(str(tmp_path), download_timeout=5, keep_local=False)
    assert "download_timeout=5" in caplog.text
    assert "keep_local=False" in caplog.text


# --- overrides that are called ---------------------------------------------------------------------------------------


def _shards(path: Path) -> str:
    with ps.create(path, format="mds", columns={"id": "int"}, size_limit=200) as writer:
        for number in range(12):
            writer.write({"id": number})
    return str(path)


@en.stateless
def text(sample: Any) -> Any:
    return en.TextSample(**en.basic_sample_keys(sample), text=sample["txt"])


class Texts(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (en.Cooker(text),)


def _recording(base: Any, name: str, calls: list[str]) -> Any:
    """A subclass whose `name` notes that it is called, and does what it did."""

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        found = getattr(super(own, self), name)
        return found(*args, **kwargs) if callable(found) else found

    inherited = getattr(base, name)
    own: Any = type("Own", (base,), {name: property(noted) if isinstance(inherited, property) else noted})
    return own


def _stream_all(kind: Any, tmp_path: Path) -> None:
    dataset = kind(local=_shards(tmp_path / "a"), batch_size=2)
    loader = streaming.StreamingDataLoader(dataset, batch_size=2)
    assert len(loader) == 6
    assert sum(len(batch["id"]) for batch in islice(loader, 2)) == 4
    loader.load_state_dict(loader.state_dict() or {})
    assert dataset[-1] == {"id": 11}


def _index_local(kind: Any, tmp_path: Path) -> None:
    dataset = kind(_shards(tmp_path / "a"))
    assert len(dataset) == 12
    assert dataset[[-1]] == [{"id": 11}]


def _load(kind: Any, tmp_path: Path) -> None:
    dataset = streaming.StreamingDataset(local=_shards(tmp_path / "a"), batch_size=2)
    assert len(list(kind(dataset, batch_size=2))) == 6


def _write(kind: Any, tmp_path: Path) -> None:
    with kind(columns={"id": "int"}, out=str(tmp_path / "a")) as writer:
        writer.write({"id": 1})


def _encode(kind: Any, tmp_path: Path) -> None:
    del tmp_path
    encoder = kind()
    if encoder.is_overridden("select_samples_to_pack", "pack_selected_samples"):
        next(iter(en.get_loader(_energon(task_encoder=encoder, packing_buffer_size=4))))
        return
    next(iter(en.get_loader(_energon(task_encoder=encoder))))


def _cook(kind: Any, tmp_path: Path) -> None:
    del tmp_path
    next(iter(en.get_loader(_energon(task_encoder=type("Own", (Texts,), {"cookers": (kind(text),)})()))))


CALLED: Mapping[str, tuple[Any, Callable[[Any, Path], None], tuple[str, ...]]] = {
    "StreamingDataset": (
        streaming.StreamingDataset, _stream_all,
        ("__getitem__", "get_item", "__iter__", "__len__", "size", "state_dict", "load_state_dict"),
    ),
    "LocalDataset": (streaming.LocalDataset, _index_local, ("__getitem__", "get_item", "__len__", "size")),
    "StreamingDataLoader": (streaming.StreamingDataLoader, _load, ("_get_batch_size",)),
    "MDSWriter": (streaming.MDSWriter, _write, ("write", "finish")),
    "TaskEncoder": (
        Texts, _encode,
        (
            "cook_crude_sample", "encode_sample", "preencode_sample", "postencode_sample", "select_samples_to_pack",
            "pack_selected_samples", "batch", "encode_batch", "build_train_datasets", "build_batch",
            "build_encode_sample",
        ),
    ),
    "Cooker": (en.Cooker, _cook, ("is_match", "need_cache", "need_primary")),
}  # fmt: skip
"""Class → it, what uses it, and the methods that the original calls on a subclass."""


@pytest.mark.parametrize(("name", "hook"), [(name, hook) for name, (_, _, hooks) in CALLED.items() for hook in hooks])
def test_an_override_is_called(name: str, hook: str, tmp_path: Path) -> None:
    base, use, _ = CALLED[name]
    calls: list[str] = []
    use(_recording(base, hook, calls), tmp_path)
    assert calls


def test_the_table_has_all_hooks_of_a_task_encoder() -> None:
    from penstock.compat.energon.encoder import HOOKS

    assert {*CALLED["TaskEncoder"][2], "batch_group_criterion", "build_val_datasets"} == set(HOOKS)


def test_groups_of_a_task_encoder_are_asked_for() -> None:
    class Groups(Texts):
        def batch_group_criterion(self, sample: Any) -> Any:
            return sample.__key__[-1], 2

    batch = next(iter(en.get_loader(_energon(task_encoder=Groups(), batch_size=None))))
    assert len({key[-1] for key in batch.__key__}) == 1


def test_a_batch_s_own_from_samples_and_pin_memory() -> None:
    @en.edataclass
    class Own(en.Batch):
        text: Any

        @classmethod
        def from_samples(cls, samples: Any, **fields: Any) -> Any:
            keys = [one.__key__ for one in samples]
            return cls(__key__=keys, __restore_key__=(), text="made")

        def pin_memory(self) -> Any:
            return "pinned"

    batch = next(iter(en.get_loader(_energon(task_encoder=Texts(raw_batch_type=Own)))))
    assert batch.text == "made"
    assert pinned(batch) == "pinned"
    assert pinned({"inside": [batch]}) == {"inside": ["pinned"]}

    class Further(en.TextSample):
        def pin_memory(self) -> Any:
            return ("own", super().pin_memory().text)

    assert pinned(Further(__key__="a", __restore_key__=(), text="x")) == ("own", "x")


# --- overrides that are refused --------------------------------------------------------------------------------------


def _refused_encoder(own: Any, tmp_path: Path) -> None:
    del tmp_path
    _energon(task_encoder=own())


def _refused_decoder(own: Any, tmp_path: Path) -> None:
    del tmp_path
    _energon(task_encoder=type("Decodes", (Texts,), {"decoder": own()})())


def _refused_factory(own: Any, tmp_path: Path) -> None:
    own(tmp_path / "a", worker_config=en.WorkerConfig(rank=0, world_size=1, num_workers=0))


def _packed(tmp_path: Path) -> Path:
    with ps.create(tmp_path / "a.pbin", format="pbin", token_bytes=2) as writer:
        writer.write({"tokens": np.arange(20, dtype=np.uint16)})
    return tmp_path / "a.pbin"


def _lines(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    return tmp_path / "a.jsonl"


_SHARD_HOOKS = (
    "encode_sample", "flush_shard", "get_config", "cancel_future_jobs", "exception_callback", "_hash",
    "_name_next_shard", "_process_file", "_reset_cache", "_write_index",
)  # fmt: skip

REFUSED: Mapping[str, tuple[Any, Callable[[Any, Path], Any], tuple[str, ...]]] = {
    "StreamingDataset": (
        streaming.StreamingDataset,
        lambda own, tmp_path: own(local=_shards(tmp_path / "a")),
        (
            "prepare_shard", "evict_shard", "evict_coldest_shard", "resample_streams", "on_exception", "_evict_shard",
            "_evict_coldest_shard", "_prepare_thread", "_ready_thread", "_each_sample_id", "_resume",
            "_resume_incr_epoch", "_get_work", "_share_work", "_attach_work", "_set_shuffle_block_size",
        ),
    ),
    "Stream": (
        streaming.Stream,
        lambda own, tmp_path: own(local=str(tmp_path)),
        (
            "apply_default", "apply_weights", "validate_weights", "get_shards", "get_index_size", "prepare_shard",
            "set_up_local", "_decompress_shard_part", "_download_file", "_get_temporary_directory",
            "_prepare_shard_part",
        ),
    ),
    "MDSWriter": (
        streaming.MDSWriter,
        lambda own, tmp_path: own(columns={"a": "int"}, out=str(tmp_path / "a")),
        (*_SHARD_HOOKS, "encode_joint_shard"),
    ),
    "JSONWriter": (
        streaming.JSONWriter,
        lambda own, tmp_path: own(columns={"a": "int"}, out=str(tmp_path / "a")),
        (*_SHARD_HOOKS, "encode_split_shard"),
    ),
    "XSVWriter": (
        streaming.XSVWriter,
        lambda own, tmp_path: own(columns={"a": "int"}, separator=",", out=str(tmp_path / "a")),
        (*_SHARD_HOOKS, "encode_split_shard"),
    ),
    "TaskEncoder": (
        Texts, _refused_encoder,
        (
            "build_cook_crude_sample", "_load_dataset", "_is_overridden",
        ),
    ),
    "CaptioningWebdataset": (en.CaptioningWebdataset, _refused_factory, ("load_sample", "sample_filter", "config")),
    "CrudeWebdataset": (en.CrudeWebdataset, _refused_factory, ("load_sample", "_load_sample_raw", "shard_workers")),
    "DefaultCrudeJsonlDatasetFactory": (
        en.DefaultCrudeJsonlDatasetFactory, _refused_factory, ("_load_sample", "_load_sample_raw", "config"),
    ),
    "SampleDecoder": (en.SampleDecoder, _refused_decoder, ("decode", "__call__", "config")),
    "PackedMemMapDatasetContinuous": (
        modalities.PackedMemMapDatasetContinuous,
        lambda own, tmp_path: own(_packed(tmp_path), "input_ids", 4, True),
        ("_generate_packing_index", "_create_packed_index"),
    ),
    "PackedMemMapDatasetMegatron": (
        modalities.PackedMemMapDatasetMegatron,
        lambda own, tmp_path: own(_packed(tmp_path), "input_ids", 4),
        ("_generate_packing_index",),
    ),
    "PackedMemMapDatasetBase": (
        modalities.PackedMemMapDatasetBase,
        lambda own, tmp_path: own(_packed(tmp_path), "input_ids"),
        ("_generate_packing_index",),
    ),
    "LargeFileLinesReader": (
        modalities.LargeFileLinesReader,
        lambda own, tmp_path: own(_lines(tmp_path)),
        ("_read_from_raw_file",),
    ),
}  # fmt: skip
"""Class → it, what makes one, and the methods that the original calls on a subclass, and Penstock never."""


@pytest.mark.parametrize(("name", "hook"), [(name, hook) for name, (_, _, hooks) in REFUSED.items() for hook in hooks])
def test_an_override_that_is_never_called_is_refused(name: str, hook: str, tmp_path: Path) -> None:
    base, make, _ = REFUSED[name]
    own: Any = type("Own", (base,), {hook: lambda self, *args, **kwargs: None})
    with pytest.raises(ConfigError, match=f"Own overrides a method that is never called here: found {hook}"):
        make(own, tmp_path)


def test_subclasses_without_such_methods_are_made(tmp_path: Path) -> None:
    for name, (base, make, _) in REFUSED.items():
        if name not in ("SampleDecoder", "TaskEncoder", "LargeFileLinesReader"):
            (tmp_path / name).mkdir()
            make(type("Own", (base,), {"helper": lambda self: None}), tmp_path / name)
            shutil.rmtree(tmp_path / name)


# --- command lines ---------------------------------------------------------------------------------------------------

CLI = COMPAT.parent / "cli"
MODULES = ("energon", "modalities", "prepare", "view")
UNREAD_OPTIONS: dict[str, str] = {}
"""`file:function:parameter` → why it changes nothing."""


def test_every_option_of_the_facades_is_read_or_stands_in_the_table() -> None:
    trees = {module: ast.parse((CLI / f"{module}.py").read_text()) for module in MODULES}
    found = {f"{module}.py:{name}" for module, tree in trees.items() for name in _unread(tree)}
    assert {one for one in found if not one.endswith(":ctx")} == set(UNREAD_OPTIONS)


@pytest.mark.parametrize("verb", ["prepare", "prepare-media"])
def test_every_option_that_comes_by_a_dict_is_asked_for_by_its_name(verb: str) -> None:
    """What the others get as `**options` they hand on whole."""
    command = command_of(verb)
    taken = [
        one.slice.value if isinstance(one, ast.Subscript) else one.args[0].value
        for one in ast.walk(ast.parse((CLI / "prepare.py").read_text()))
        if (isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Constant))
        or ((isinstance(one, ast.Call) and getattr(one.func, "attr", "") == "pop" and one.args)
        and isinstance(one.args[0], ast.Constant))
    ]  # fmt: skip
    by_name = inspect.signature(command.callback).parameters
    assert {one.name for one in command.params} <= {*by_name, *taken, *PREPARE_RUN_OPTIONS, "shuffle_tars"}
