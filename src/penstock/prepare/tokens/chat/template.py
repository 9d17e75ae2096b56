"""Chat templates: their files and markers, and the conversations that they render.

Files are found as by transformers. If there are several templates, conversations with tools use `tool_use`, others
`default`.

| file | contents |
|---|---|
| `chat_template.jinja` | the template, instead of that of the config |
| `additional_chat_templates/NAME.jinja` | more templates, by name |
| `chat_template` in `tokenizer_config.json` | text, or a list of `{"name", "template"}` |
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from penstock.errors import ConfigError, Corrupt
from penstock.prepare.tokens.engines import Reference
from penstock.prepare.tokens.tokenizer import NAMED_TOKENS, TokenizerSpec, read_config, token_text
from penstock.store.base import Store
from penstock.store.place import Place

ASSISTANT = "assistant"
DEFAULT = "default"
TOOL_USE = "tool_use"

_FILE = "chat_template.jinja"
_FOLDER = "additional_chat_templates"
_CONFIG = "tokenizer_config.json"
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_MOST_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Chat template as workers get it. It is hashed and compared by its digest.

    Attributes:
        path: its file, for errors.
        templates: name → text.
        tokens: variables of the template: name → a special token, or several.
        controls: special tokens at which text is split. Messages must not contain them.
        date: the date of `strftime_now`; None if it isn't available.
        normalizer: JSON of the tokenizer's normalizer; empty if no control token is searched in normalized text.
        normalized_controls: `controls` that are.
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
    spec: TokenizerSpec, store: Store, date: str | None = None, *, keep_control_tokens: bool = False
) -> ChatTemplate:
    """Load the chat template next to a tokenizer. `date` is `YYYY-MM-DD`.

    Raises:
        ConfigError: there is no template, the tokenizer isn't a `tokenizer.json`, or the date is invalid.
        Corrupt: the template is invalid.
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
    # As in transformers: older directories list their tokens in the map.
    names = config if "added_tokens_decoder" in config else {**config, **named}
    tokens = tuple(sorted(_tokens(names).items()))
    tokenizer = json.loads(spec.json)
    added = [] if spec.split_special_tokens or keep_control_tokens else tokenizer.get("added_tokens") or ()
    specials = [one for one in added if one.get("special")]
    controls = tuple(sorted({str(one["content"]) for one in specials}))
    normalizer = tokenizer.get("normalizer")
    normalized = {str(one["content"]) for one in specials if one.get("normalized")} if normalizer else set[str]()
    if date is not None:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            what, expected = "invalid chat date", "YYYY-MM-DD for chat_date= (--chat-date)"
            raise ConfigError(what, found=repr(date), expected=expected) from None
    content = [sorted(templates.items()), tokens, controls, date]
    digest = xxhash.xxh3_128_hexdigest(json.dumps(content).encode())
    return ChatTemplate(
        path, tuple(sorted(templates.items())), tokens, controls, date, digest,
        json.dumps(normalizer) if normalized else "", tuple(sorted(normalized)),
    )  # fmt: skip


def _templates(folder: Place, config: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
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
    found: dict[str, str | tuple[str, ...]] = {}
    more = config.get("extra_special_tokens")
    pairs = [(name, config.get(name)) for name in NAMED_TOKENS] + (
        list(more.items()) if isinstance(more, Mapping) else []
    )
    for name, value in pairs:
        if content := token_text(value):
            found[str(name)] = content
    for name in _LISTS:
        values = config.get(name)
        if isinstance(values, list) and all(isinstance(one, str) for one in values) and values:
            found[name] = tuple(values)
    return found


_MARKER = re.compile(r"<[|｜][^<>|｜\s'\"]{1,64}[|｜]>|<(?:start|end)_of_[a-z_]{1,32}>")


def missing_markers(chat: ChatTemplate, reference: Reference) -> list[str]:
    """Return the markers in the text of a template that the tokenizer splits into several tokens, sorted."""
    markers = sorted({found for _, text in chat.templates for found in _MARKER.findall(text)})
    lengths = reference.encode([marker.encode() for marker in markers])[1].tolist() if markers else []
    return [marker for marker, length in zip(markers, lengths, strict=True) if length != 1]


Spans = list[tuple[int, int]]
"""First and last + 1 characters of generated text, rising."""


class UnusableError(Exception):
    """Reason why a conversation can't be rendered, in one line."""


class StoppedError(UnusableError):
    """The template exceeded its limits of steps or text for a conversation."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Input of a template.

    Attributes:
        messages: JSON objects with a `role`.
        tools: JSON objects; None if there are none.
        chars: approximate size. A template may take more steps for more text.
        template_kwargs: more variables, by name.
        untrained: indices of messages that aren't trained on, even if they are generated.
    """

    messages: Sequence[dict[str, Any]]
    tools: list[Any] | None
    chars: int
    untrained: frozenset[int] = frozenset()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
