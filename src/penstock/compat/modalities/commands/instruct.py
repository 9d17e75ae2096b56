"""`prepare_instruction_tuning_data` of Modalities: renders chats by a template, splits, indexes and packs them.

Templates are rendered by jinja2's immutable sandbox: they see the messages and their own data, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock._optional import require
from penstock._regular import open_regular, read_regular
from penstock.abc import Staged
from penstock.compat.modalities.commands.config import load_config, parse_yaml, resolve_config
from penstock.compat.modalities.commands.data import Done, create_raw_data_index
from penstock.compat.modalities.commands.pack import existing_file, pack_encoded_data, path_of, section, text_of
from penstock.engine.options import Progress
from penstock.errors import ConfigError, PenstockError, PrepareError
from penstock.store.local import LocalStore
from penstock.store.put import put

PARTITIONS = ("train", "val", "test")

Render = Callable[[list[Any]], str]
"""Messages → text."""

_HASH_CHARACTERS = 7
_ROLE_KEYS = ("role", "from")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Validated configuration.

    Attributes:
        src_path: JSONL of conversations.
        dst_path: name of the results, which are written to a folder next to it.
        messages_key: key of the messages in each line.
        shares: percent of each partition.
        seed: determines the partition of each line.
        pack_config_path: configuration of `pack_encoded_data`.
        role_mapping: role in the data → role in the text.
        template: jinja2 template.
        template_data: value of `chat_template_data` in the template.
    """

    src_path: Path
    dst_path: Path
    messages_key: str
    shares: Mapping[str, int]
    seed: int
    pack_config_path: Path
    role_mapping: Mapping[str, str]
    template: str
    template_data: Mapping[str, Any]


def create_instruction_tuning_data(config_file_path: Path, *, progress: Progress | None = None) -> Done:
    """Render conversations, assign them to train, val and test, and index and pack each non-empty partition.

    The results are in `<dst folder>/<src stem>_<7 digits of the configuration's SHA-256>`. Files of an earlier run with
    the same configuration are replaced.

    Raises:
        ConfigError: a setting or the template is invalid.
        NotFound: a file is missing.
        PrepareError: a line isn't a conversation, has an unknown role, or can't be rendered.
        MissingExtra: jinja2 is not installed.
    """
    config = load_config(config_file_path)
    settings = read_chat_settings(config)
    digest = hashlib.sha256(read_regular(config_file_path)).hexdigest()[:_HASH_CHARACTERS]
    folder = settings.dst_path.parent / f"{settings.src_path.stem}_{digest}"
    put(LocalStore(), str(folder / f"instruction_chat_template_config.{digest}.yaml"), read_regular(config_file_path))
    files = {name: _partition_path(folder, settings.dst_path, name, digest) for name in PARTITIONS}
    counts = _write_partitions(settings, files)
    done = Done(str(folder), f"{folder}: " + ", ".join(f"{counts[name]:,} {name}" for name in counts))
    for name, count in counts.items():
        if count:
            packed = _index_and_pack(settings, files[name], name, progress)
            done.differences.extend(f"{name}: {one}" for one in packed.differences)
            done.notes.extend(f"{name}: {one}" for one in packed.notes)
    return done


def read_chat_settings(config: Mapping[str, Any]) -> ChatSettings:
    """Return the settings in the command's configuration; raise `ConfigError` or `NotFound`."""
    given = section(config, "settings")
    split = section(given, "split_config")
    shares = section(split, "splitting")
    percents = {name: _whole(shares, name) for name in PARTITIONS}
    if sum(percents.values()) != 100 or min(percents.values()) < 0:
        found = ", ".join(f"{name} {share}" for name, share in percents.items())
        raise ConfigError(
            "the split percentages don't add up to 100", found=found, expected="whole percents, 100 together"
        )
    template = config.get("jinja2_chat_template")
    if not isinstance(template, str):
        raise ConfigError("the configuration has no string 'jinja2_chat_template'", found=repr(template))
    roles = section(section(config, "instruction_data_transformation"), "role_mapping")
    return ChatSettings(
        src_path=existing_file(given, "src_path"),
        dst_path=path_of(given, "dst_path"),
        messages_key=text_of(given, "messages_key"),
        shares=percents,
        seed=_whole(split, "seed"),
        pack_config_path=existing_file(given, "pbin_creation_config_file_path"),
        role_mapping={str(role): str(name) for role, name in roles.items()},
        template=template,
        template_data=section(config, "chat_template_data"),
    )


def chat_renderer(template: str, data: Mapping[str, Any]) -> Render:
    """Return a function that renders messages.

    Args:
        template: jinja2 template; line breaks between `}` and `{` are removed, as in the original.
        data: value of `chat_template_data` in the template.

    Raises:
        ConfigError: the template has an error.
    """
    sandbox = require("jinja2.sandbox", extra="modalities")
    jinja2 = require("jinja2", extra="modalities")

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    try:
        compiled = environment.from_string(template.replace("}\n{", "}{"))
    except jinja2.TemplateError as error:
        raise ConfigError(f"the chat template has an error: {error}") from None
    return lambda messages: compiled.render(messages=messages, chat_template_data=data)


# --- the parts -----------------------------------------------------------------------------------------------------


def _whole(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"the setting {name!r} is not an integer", found=repr(value))
    return value


def _partition_path(folder: Path, dst_path: Path, name: str, digest: str) -> Path:
    suffix = f".{digest}" + ".".join(dst_path.suffixes)
    return (folder / f"{dst_path.stem}_{name}").with_suffix(suffix)


def _write_partitions(settings: ChatSettings, files: Mapping[str, Path]) -> dict[str, int]:
    """Write the partitions with a share; all become visible when all are complete. Returns lines of each."""
    render = chat_renderer(settings.template, settings.template_data)
    store = LocalStore()
    staged: dict[str, Staged] = {}
    counts = {name: 0 for name in PARTITIONS if settings.shares[name]}
    try:
        for name in counts:
            staged[name] = store.stage(str(files[name]), overwrite=True)
        for name, line in _assigned(settings, render):
            staged[name].write(line)
            counts[name] += 1
        store.commit(list(staged.values()))
    except BaseException:
        for one in staged.values():
            one.abort()
        raise
    return counts


def _assigned(settings: ChatSettings, render: Render) -> Iterator[tuple[str, bytes]]:
    """(partition, line) of each conversation, assigned by the generator and the call of the original."""
    generator = random.Random(settings.seed)
    weights = [settings.shares[name] for name in PARTITIONS]
    with open_regular(settings.src_path) as file:
        for number, line in enumerate(file, 1):
            partition = generator.choices(PARTITIONS, weights=weights)[0]
            try:
                yield partition, _rendered(line, settings, render)
            except PenstockError:
                raise
            except Exception as error:  # a template may raise anything
                what = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
                raise PrepareError(
                    f"line {number}: {what}", path=settings.src_path, hint="Fix the line, the roles or the template"
                ) from error


def _rendered(line: bytes, settings: ChatSettings, render: Render) -> bytes:
    entry = json.loads(line)
    messages = entry[settings.messages_key]
    for turn in messages:
        for key in _ROLE_KEYS:
            if key in turn:
                turn[key] = settings.role_mapping[turn[key]]
    entry["chat"] = render(messages)
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def _index_and_pack(settings: ChatSettings, jsonl: Path, name: str, progress: Progress | None) -> Done:
    """Index a partition, write its own configuration, and pack it."""
    index = jsonl.with_suffix(".idx")
    create_raw_data_index(jsonl, index, "override")
    config_path = jsonl.with_name(f"pbin_config_{name}").with_suffix(f"{jsonl.suffixes[0]}.yaml")
    config = resolve_config(parse_yaml(read_regular(settings.pack_config_path), settings.pack_config_path), config_path)
    paths = {"src_path": str(jsonl), "index_path": str(index), "dst_path": str(index.with_suffix(".pbin"))}
    config["settings"] = {**section(config, "settings"), **paths}
    put(LocalStore(), str(config_path), yaml.safe_dump(_plain(config), allow_unicode=True).encode())
    return pack_encoded_data(config, "override", progress=progress)


def _plain(value: Any) -> Any:
    """Return a copy of a value with paths as texts, because YAML can't store paths safely."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
