"""`prepare_instruction_tuning_data`: every file of the original, byte for byte; templates that can do no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.internals import chat_renderer, create_instruction_tuning_data
from tests.reshape.datasets import files_in

from penstock.errors import ConfigError, NotFound, PrepareError

CONFIG = Path("configs/instruct.yaml")


def changed(**changes: Any) -> Path:
    """A copy of the golden configuration with other settings; a dotted name leads inside."""
    config = yaml.safe_load(CONFIG.read_text())
    for name, value in changes.items():
        *sections, last = name.split("__")
        place = config
        for one in sections:
            place = place[one]
        if value is None:
            del place[last]
        else:
            place[last] = value
    path = Path("configs/changed.yaml")
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return path


def result_folder() -> Path:
    (folder,) = Path("pbin/instruct").iterdir()
    return folder


def test_golden(workplace: Path, golden: Path) -> None:
    done = create_instruction_tuning_data(CONFIG)
    made, expected = Path("pbin/instruct/chat_1715b73"), golden / "modalities" / "commands" / "instruct"
    assert done.summary == f"{made}: 24 train, 2 val, 4 test"
    assert files_in(made) == files_in(expected) | {f"chat_converted_{p}.1715b73.pbin.penstock" for p in
                                                   ("train", "val", "test")}  # fmt: skip
    for name in files_in(expected):
        assert (made / name).read_bytes() == (expected / name).read_bytes(), name


def test_again_replaces(workplace: Path) -> None:
    create_instruction_tuning_data(CONFIG)
    folder = result_folder()
    before = {name: (folder / name).read_bytes() for name in files_in(folder)}
    (folder / "chat_converted_val.1715b73.jsonl").write_bytes(b"something else")
    create_instruction_tuning_data(CONFIG)
    assert {name: (folder / name).read_bytes() for name in files_in(folder)} == before


def test_partitions_without_a_share_or_a_line(workplace: Path) -> None:
    shares = {"train": 99, "val": 1, "test": 0}
    create_instruction_tuning_data(changed(settings__split_config__splitting=shares))
    names = {name.split(".")[0] for name in files_in(result_folder())}
    assert names == {
        "instruction_chat_template_config", "chat_converted_train", "pbin_config_train", "chat_converted_val",
    }  # fmt: skip
    (empty,) = result_folder().glob("chat_converted_val*")
    assert empty.read_bytes() == b""


@pytest.mark.parametrize(
    ("change", "error", "what"),
    [
        ({"settings__split_config__splitting": {"train": 50, "val": 20, "test": 20}}, ConfigError, "add up"),
        ({"settings__split_config__splitting": {"train": 120, "val": -20, "test": 0}}, ConfigError, "add up"),
        ({"settings__split_config": None}, ConfigError, "split_config"),
        ({"settings__split_config__seed": "x"}, ConfigError, "seed"),
        ({"settings__pbin_creation_config_file_path": None}, ConfigError, "pbin_creation_config_file_path"),
        ({"settings__pbin_creation_config_file_path": "nothing.yaml"}, NotFound, "nothing.yaml"),
        ({"settings__src_path": "nothing.jsonl"}, NotFound, "nothing.jsonl"),
        ({"jinja2_chat_template": None}, ConfigError, "jinja2_chat_template"),
        ({"jinja2_chat_template": "{{ x"}, ConfigError, "template has an error"),
        ({"chat_template_data": None}, ConfigError, "chat_template_data"),
        ({"instruction_data_transformation__role_mapping": {"human": "User"}}, PrepareError, "line 1: no 'gpt'"),
        ({"settings__messages_key": "nothing"}, PrepareError, "line 1: no 'nothing'"),
        ({"jinja2_chat_template": "{{ raise_exception('stop here') }}"}, PrepareError, "stop here"),
    ],
)
def test_refusals_leave_nothing(workplace: Path, change: dict[str, Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        create_instruction_tuning_data(changed(**change))
    assert not Path("pbin").exists() or not [name for name in files_in(Path("pbin")) if "chat_converted" in name]


def test_a_line_that_is_no_json(workplace: Path) -> None:
    lines = Path("inputs/chat.jsonl").read_bytes().splitlines(keepends=True)
    Path("inputs/chat.jsonl").write_bytes(b"".join([*lines[:4], b"\n", *lines[4:]]))
    with pytest.raises(PrepareError, match="line 5"):
        create_instruction_tuning_data(CONFIG)
    assert not list(Path("pbin").rglob("*.jsonl"))


def test_rendering() -> None:
    render = chat_renderer(
        "{% for m in messages %}\n{{ m.a }}\n{{ d }}{% endfor %}{{ chat_template_data.x }}", {"x": "é"}
    )
    assert render([{"a": "1"}, {"a": "2"}]) == "12é"
    tojson = chat_renderer("{{ messages | tojson }}", {})
    assert tojson([{"a": "<é&>"}]) == json.dumps([{"a": "<é&>"}], ensure_ascii=False)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ ''.format.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
        "{{ range(999999999) }}",
    ],
)
def test_templates_stay_in_their_sandbox(template: str) -> None:
    with pytest.raises(Exception, match=r"unsafe|Immutable|not safe|no loader|range|undefined|Range|sequence"):
        chat_renderer(template, {})([{"a": 1}])
