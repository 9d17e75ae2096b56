"""The chat template of a tokenizer's folder, as transformers finds it, and what a template gets beside the messages.

| where | what |
|---|---|
| `chat_template.jinja` | the template; then that of the config does not count |
| `additional_chat_templates/NAME.jinja` | further ones, by name |
| `chat_template` in `tokenizer_config.json` | a text, or a list of `{"name", "template"}` |

Of several, `tool_use` is taken where a conversation has tools, else `default`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

from penstock.errors import ConfigError, Corrupt
from penstock.prepare.tokens.tokenizer import TokenizerSpec, read_config
from penstock.store.local import LocalStore
from penstock.store.place import Place

DEFAULT = "default"
TOOL_USE = "tool_use"

_FILE = "chat_template.jinja"
_FOLDER = "additional_chat_templates"
_CONFIG = "tokenizer_config.json"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_MOST_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A chat template, as workers get it; its digest stands for it.

    Attributes:
        path: of the file that holds it, for errors.
        templates: name → text.
        tokens: what a template gets beside the messages: name → a special token, or several.
        controls: special tokens that a text is cut at: no message may hold one.
        date: what `strftime_now` tells; None where it can't.
        digest: of all of it.
        normalizer: JSON of the tokenizer's normalizer; empty if no control token is looked for in normalized text.
        normalized_controls: the `controls` that are.
    """

    path: str
    templates: tuple[tuple[str, str], ...] = field(repr=False, compare=False)
    tokens: tuple[tuple[str, str | tuple[str, ...]], ...] = field(repr=False, compare=False)
    controls: tuple[str, ...] = field(repr=False, compare=False)
    date: str | None
    digest: str
    normalizer: str = field(default="", repr=False, compare=False)
    normalized_controls: tuple[str, ...] = field(default=(), repr=False, compare=False)


def load_template(
    spec: TokenizerSpec, store: LocalStore, date: str | None = None, *, keep_control_tokens: bool = False
) -> ChatTemplate:
    """The chat template beside a tokenizer.

    Args:
        spec: the tokenizer.
        store: where it is.
        date: `YYYY-MM-DD`, for templates that ask for the day.
        keep_control_tokens: messages may hold special tokens.

    Raises:
        ConfigError: it has none, is no `tokenizer.json`, or the date is none.
        Corrupt: what stands there is no template.
    """
    if spec.kind != "tokenizers":
        what, hint = "conversations need a tokenizer.json", "It maps tokens to characters. Pass its folder"
        raise ConfigError(what, path=spec.path, found=spec.kind, hint=hint)
    folder = Place(store, spec.path).folder()
    config = read_config(folder.child(_CONFIG))
    named = read_config(folder.child("special_tokens_map.json"))
    path, templates = _templates(folder, config)
    if not templates:
        hint = f"Put one next to it as {_FILE}, or into {_CONFIG} as chat_template"
        raise ConfigError("this tokenizer has no chat template", path=folder.path, hint=hint)
    for name, text in templates.items():
        if len(text) > _MOST_CHARS:
            what = f"the chat template {name!r} is too long"
            raise Corrupt(what, path=path, found=len(text), expected=f"at most {_MOST_CHARS} characters")
    # As transformers does: a config that lists its added tokens is of its time, in an older folder the map is.
    told = config if "added_tokens_decoder" in config else {**config, **named}
    tokens = tuple(sorted(_tokens(told).items()))
    tokenizer = json.loads(spec.json)
    added = [] if spec.split_special_tokens or keep_control_tokens else tokenizer.get("added_tokens") or ()
    specials = [one for one in added if one.get("special")]
    controls = tuple(sorted({str(one["content"]) for one in specials}))
    normalizer, normalized = (
        tokenizer.get("normalizer"),
        {str(one["content"]) for one in specials if one.get("normalized")},
    )
    has_normalized = bool(normalizer and normalized)
    said = [sorted(templates.items()), tokens, controls, _checked(date)]
    digest = xxhash.xxh3_128_hexdigest(json.dumps(said).encode())
    return ChatTemplate(
        path, tuple(sorted(templates.items())), tokens, controls, date, digest,
        json.dumps(normalizer) if has_normalized else "", tuple(sorted(normalized)) if has_normalized else (),
    )  # fmt: skip


def _templates(folder: Place, config: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The file, and name → template."""
    path, found = folder.child(_CONFIG).path, dict[str, str]()
    given = config.get("chat_template")
    if isinstance(given, str):
        found[DEFAULT] = given
    elif isinstance(given, list):
        for one in given:
            if not (
                isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)
            ):
                what, expected = "not a chat template", 'a string, or a list of {"name", "template"}'
                raise Corrupt(what, path=path, found=repr(one)[:80], expected=expected)
            found[one["name"]] = one["template"]
    elif given is not None:
        raise Corrupt("not a chat template", path=path, found=type(given).__name__, expected="a string, or a list")
    file = folder.child(_FILE)
    if not file.exists():
        return path, found
    found = {DEFAULT: _text(file)}
    more = folder.child(_FOLDER)
    for name in sorted(more.names()) if more.is_folder() else ():
        if name.endswith(".jinja"):
            found[name.removesuffix(".jinja")] = _text(more.child(name))
    return file.path, found


def _text(file: Place) -> str:
    try:
        return file.store.get(file.path).decode()
    except UnicodeDecodeError as error:
        raise Corrupt("the chat template is not UTF-8", path=file.path, offset_bytes=error.start) from None


def _tokens(config: Mapping[str, Any]) -> dict[str, str | tuple[str, ...]]:
    """The special tokens by the names that templates know."""
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in _pairs(config):
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str) and content:
            found[name] = content
    for name in _LISTS:
        values = config.get(name)
        if isinstance(values, list) and all(isinstance(one, str) for one in values) and values:
            found[name] = tuple(values)
    return found


def _pairs(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((name, config.get(name)) for name in _NAMED)
    more = config.get("extra_special_tokens")
    if isinstance(more, Mapping):
        yield from ((str(name), value) for name, value in more.items())


def _checked(date: str | None) -> str | None:
    if date is not None:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            what = "invalid chat date"
            raise ConfigError(what, found=repr(date), expected="YYYY-MM-DD for chat_date= (--chat-date)") from None
    return date
