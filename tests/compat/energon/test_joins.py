"""Joins, multipliers and old options through Energon's loader."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import energon as en
from penstock.errors import ConfigError, UnsafeData

DATA = Path(__file__).parent.parent.parent / "golden" / "energon-loading" / "data"


class Plain(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    pass


class Cooking(en.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Takes every crude sample: nothing of a join of typed ones may come here."""

    cookers = (en.Cooker(lambda sample: en.TextSample(**en.basic_sample_keys(sample), text=sample["txt"])),)


class Loud(Plain):
    @en.stateless
    def encode_sample(self, sample: Any) -> Any:
        sample.text = sample.text.upper()
        return sample


def pair(a: Any, b: Any) -> Any:
    return en.TextSample.derive_from(a, text=f"{a.text}+{b['text']}")


def fields(a: Any, b: Any) -> Any:
    return {"text": f"{a['text']}+{b.text}"}


def write(path: Path, body: str) -> Path:
    path.write_text("__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n" + body)
    return path


def join(joiner: str, indent: int = 4, config: str = "text.yaml") -> str:
    made = (
        f"join:\n- {{path: {DATA}/ds_a, dataset_config: {config}}}\n"
        f"- {{path: {DATA}/ds_b, dataset_config: {config}, nonmatch: skip}}\njoiner: {joiner}\n"
    )
    return "".join(f"{' ' * indent}{line}\n" for line in made.splitlines())


FUNCTION = "{__module__: my, __function__: joiner}"
CLASS = "{__module__: megatron.energon, __class__: TextSample}"


def dataset(path: Path, encoder: Any, batch_size: int | None = 4, **more: Any) -> Any:
    wc = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    return en.get_train_dataset(path, worker_config=wc, batch_size=batch_size, task_encoder=encoder, **more)


@pytest.mark.parametrize("encoder", [Plain, Cooking, Loud])
@pytest.mark.parametrize("joiner", ["typed", "class"])
def test_joined_samples_train_and_come_back(tmp_path: Path, encoder: Any, joiner: str) -> None:
    path = write(tmp_path / "join.yaml", join(FUNCTION if joiner == "typed" else CLASS))
    more = {"joiners": {"my.joiner": pair}} if joiner == "typed" else {}
    ld = en.get_savable_loader(dataset(path, encoder(), **more))
    batch = next(iter(ld))
    assert isinstance(batch, en.TextSample)
    assert len(batch.text) == 4
    assert all(("+" in one) == (joiner == "typed") for one in batch.text)
    assert all(one.isupper() for one in batch.text) == (encoder is Loud)
    for number, key in enumerate(batch.__restore_key__):
        again = ld.restore_sample(key)
        assert (again.__key__, again.text) == (batch.__key__[number], batch.text[number])
    assert not ld.failures
    state = ld.save_state_rank()
    following = next(iter(ld)).__key__
    other = en.get_savable_loader(dataset(path, encoder(), **more))
    other.restore_state_rank(state)
    assert next(iter(other)).__key__ == following


def test_a_joiner_may_give_a_dict(tmp_path: Path) -> None:
    path = write(tmp_path / "join.yaml", join(FUNCTION))
    ld = en.get_savable_loader(dataset(path, Cooking(), joiners={"my.joiner": fields}))
    batch = next(iter(ld))
    assert len(batch["text"]) == len(batch["__key__"]) == 4
    assert ld.restore_sample(batch["__restore_key__"][1])["text"] == batch["text"][1]


def makes_texts(a: Any, b: Any) -> en.TextSample:
    return pair(a, b)


def of_this_program(a: Any, b: Any) -> Any:
    return pair(a, b)


def named(function: str) -> str:
    module, _, name = function.rpartition(".")
    return f"{{__module__: {module}, __function__: {name}}}"


def test_a_function_of_the_program_that_makes_samples_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "join.yaml", join(named(f"{__name__}.makes_texts")))
    assert all("+" in one for one in next(iter(en.get_loader(dataset(path, Plain())))).text)


@pytest.mark.parametrize("function", ["os.system", "subprocess.run", "builtins.eval", f"{__name__}.of_this_program"])
def test_no_other_function_that_is_loaded_may_be_named(function: str, tmp_path: Path) -> None:
    path = write(tmp_path / "join.yaml", join(named(function)))
    with pytest.raises(UnsafeData, match="unknown"):
        dataset(path, Plain())


def test_joins_in_validation_and_in_a_blend(tmp_path: Path) -> None:
    wc = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    path = write(tmp_path / "join.yaml", join(CLASS))
    ld = en.get_loader(
        en.get_val_dataset(path, split_part="train", worker_config=wc, batch_size=2, task_encoder=Plain())
    )
    assert all(isinstance(batch, en.TextSample) for batch in ld)
    body = "    blend:\n    - " + join(FUNCTION, 6).lstrip()
    body += f"    - {{path: {DATA}/ds_b, dataset_config: text.yaml}}\n"
    ld = en.get_loader(dataset(write(tmp_path / "blend.yaml", body), Plain(), joiners={"my.joiner": pair}))
    texts = [text for batch in islice(ld, 10) for text in batch.text]
    assert 10 <= sum("+" in text for text in texts) <= 30


def test_joined_crude_samples_are_cooked(tmp_path: Path) -> None:
    def crude(a: Any, b: Any) -> Any:
        return {"txt": a["txt"] + b["txt"]}

    path = tmp_path / "crude.yaml"
    write(path, join(FUNCTION).replace(", dataset_config: text.yaml", ""))
    batch = next(iter(en.get_loader(dataset(path, Cooking(), joiners={"my.joiner": crude}))))
    assert isinstance(batch, en.TextSample)


def test_a_field_that_a_member_does_not_have(tmp_path: Path) -> None:
    def wrong(a: Any, b: Any) -> Any:
        return {"text": a.txet}

    path = write(tmp_path / "join.yaml", join(FUNCTION))
    with pytest.raises(AttributeError, match="no field 'txet'"):
        next(iter(en.get_loader(dataset(path, Plain(), joiners={"my.joiner": wrong}))))


# --- how often a dataset is read before it comes again -----------------------------------------------------------


def first_keys(path: Path, **more: Any) -> list[str]:
    return [sample.__key__ for sample in islice(en.get_loader(dataset(path, Plain(), None, **more)), 20)]


@pytest.mark.parametrize(
    ("given", "said", "expected"),
    [
        (1, 1, "once"), (None, 1, "in order"), (1, None, "in order"), (3, None, "in order"), (None, 5, "in order"),
        (5, 1, "again"), (1, 5, "again"), (-1, 1, "again"), (1, -1, "again"), (2, 3, "again"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", ["single", "blend"])
def test_multipliers_of_file_and_call(tmp_path: Path, shape: str, given: Any, said: Any, expected: str) -> None:
    item = f"path: {DATA}/ds_a, dataset_config: text.yaml"
    item += f", shuffle_over_epochs_multiplier: {'null' if said is None else said}"
    body = f"    blend:\n    - {{{item}}}\n" if shape == "blend" else f"    {item.replace(', ', chr(10) + '    ')}\n"
    found = first_keys(write(tmp_path / "m.yaml", body), shuffle_over_epochs_multiplier=given)
    stored = first_keys(DATA / "ds_a", dataset_config="text.yaml", shuffle_over_epochs_multiplier=None)
    assert stored[:3] == ["s000", "s001", "s002"]
    kind = "again" if len(set(found)) < 20 else "in order" if found == stored else "once"
    assert kind == expected


def test_multipliers_that_there_are_not(tmp_path: Path) -> None:
    for wrong in (0, -2):
        with pytest.raises(ConfigError, match="multiplier"):
            dataset(DATA / "ds_a", Plain(), shuffle_over_epochs_multiplier=wrong)


# --- old options -------------------------------------------------------------------------------------------------


def test_options_of_older_scripts() -> None:
    dataset(DATA / "ds_a", Cooking(), parallel_shard_iters=4)
    for name, hint in (("image_decode", "decoder = SampleDecoder"), ("handler", "global_error_handler")):
        with pytest.raises(ConfigError, match=hint):
            dataset(DATA / "ds_a", Cooking(), **{name: None})
    assert [Path(leaf.path).name for leaf in en.traverse_metadataset(DATA / "mds/blend.yaml", split_part="train")]
