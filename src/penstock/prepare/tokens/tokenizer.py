"""Tokenizer files of Hugging Face: a `tokenizer.json` as `tokenizers` reads it, or a directory as `transformers` does.

Documents are never truncated or padded, regardless of a tokenizer's file. From a `tokenizer_config.json`, the same
settings are used as in transformers 4.57 (whose fast tokenizers Modalities calls): tokens that the config adds,
`add_prefix_space`, `split_special_tokens`, and the BOS and EOS of the Llama family.

Files are untrusted. The libraries are written in Rust: an id of 4294967295 makes one allocate hundreds of GB, which
ends the process, and a wrong template ends in a `PanicException`, which isn't an `Exception`. So ids are checked first,
then the file is loaded once in another process, and panics become typed errors.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import xxhash

from penstock._limits import MOST_TOKEN_ID, MOST_TOKENIZER_BYTES
from penstock._naming import nearest
from penstock._optional import require
from penstock.codec.tokens import token_bytes_for_id, token_bytes_for_vocab
from penstock.errors import ConfigError, Corrupt, NotFound, TooLarge
from penstock.store.base import Store
from penstock.store.place import Place, absolute, local_path

_HINT = "Use a tokenizer.json written by the tokenizers package, or a Hugging Face folder"
_PROBE_S = 300
_PROBE_BYTES, _PROBE_FACTOR = 8 << 30, 64
_GROWS = 3
_PROBE = """
import resource, sys
data = sys.stdin.buffer.read()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
given = resource.getrlimit(resource.RLIMIT_AS)[1]
most = int(sys.argv[1]) if given == resource.RLIM_INFINITY else min(given, int(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (most, most))
def patterns(value):
    for one in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from patterns(one)
    if isinstance(value, dict) and isinstance(value.get("String"), str):
        yield value["String"]
def by_tokenizers():
    import json, os, tokenizers
    made = tokenizers.Tokenizer.from_buffer(data)
    made.no_truncation()
    made.no_padding()
    made.get_vocab(True), made.decode([0]), made.to_str()
    known = json.loads(data)
    for text in "a b", "".join(map(chr, range(9, 127))), *list(patterns(known.get("normalizer")))[:1000]:
        normal = made.normalizer.normalize_str(text) if made.normalizer else text
        if max(len(normal), len(made.encode(text).ids) // 4) > 64 * len(text.encode()) + 4096:
            os._exit(int(sys.argv[2]))
def by_gigatoken():
    import gigatoken
    gigatoken.Tokenizer.from_json(data).encode(b"a b")
for probe in by_tokenizers, by_gigatoken:
    try:
        probe()
    except BaseException:
        pass
"""


def parse_tokenizer(data: bytes, path: str) -> Any:
    tokenizers = require("tokenizers", extra="tokenize")
    with no_panics("not a valid tokenizer.json", path):
        try:
            return tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the package raises the base class
            raise Corrupt("not a valid tokenizer.json", path=path, found=str(error), hint=_HINT) from error


def tokenizer_digest(data: bytes, *, split_special_tokens: bool = False) -> str:
    """Return the digest that side files record: of the tokenizer's file, and of a setting that isn't in it."""
    return xxhash.xxh3_128_hexdigest(data + b"\0split" * split_special_tokens)


def require_loadable(data: bytes, path: str) -> None:
    """Raise an error for a file that would end the process that loads it. Each file is loaded once in another process.

    Raises:
        TooLarge: an id is above `MOST_TOKEN_ID`, or the file has more than `MOST_TOKENIZER_BYTES`.
        Corrupt: it ends that process, takes more than 300 s or 8 GiB, or makes a short text more than 64 times longer.
    """
    if len(data) > MOST_TOKENIZER_BYTES:
        raise TooLarge(
            "the tokenizer is too large", path=path, found=f"{len(data)} bytes", expected=str(MOST_TOKENIZER_BYTES)
        )
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # its library has a better error
    for token_id in _ids(value):
        if token_id > MOST_TOKEN_ID:
            raise TooLarge(
                "an id that can't be in a vocabulary", path=path, found=token_id, expected=f"{MOST_TOKEN_ID:,}"
            )
    fate = _fate(_File(xxhash.xxh3_128_hexdigest(data), data))
    if fate is not None:
        raise Corrupt("this tokenizer.json crashes the process that uses it", path=path, found=fate, hint=_HINT)


@contextlib.contextmanager
def no_panics(what: str, path: str) -> Generator[None]:
    """Turn a panic of Rust, which isn't an `Exception`, into `Corrupt`."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise Corrupt(what, path=path, found=f"{type(error).__name__}: {error}".partition("\n")[0]) from None


def _ids(value: Any) -> Iterator[int]:
    """Yield the largest id of a vocabulary, and the ids of added tokens and of those around texts."""
    if not isinstance(value, dict):
        return
    model: Any = value.get("model")
    vocab: Any = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        yield max((one for one in vocab.values() if isinstance(one, int)), default=0)
    tokens: Any = value.get("added_tokens")
    for added in tokens if isinstance(tokens, list) else ():
        if isinstance(added, dict) and isinstance(added.get("id"), int):
            yield added["id"]
    waiting: list[Any] = [value.get("post_processor")]
    while waiting:
        one: Any = waiting.pop()
        if isinstance(one, int):
            yield one
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, Mapping):
            waiting += one.values()


@dataclass(frozen=True, slots=True)
class _File:
    digest: str
    data: bytes = field(repr=False, compare=False)


@functools.lru_cache(maxsize=4)
def _fate(file: _File) -> str | None:
    """Return how a process ends that loads a tokenizer; None if it works."""
    if not sys.executable:
        return None
    most_bytes = _PROBE_BYTES + _PROBE_FACTOR * len(file.data)
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(most_bytes), str(_GROWS)],
            input=file.data, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_PROBE_S, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not finished after {_PROBE_S} s"
    except OSError:
        return None  # no other process can be started; the ids are checked
    if done.returncode == _GROWS:
        return "text that grows by more than 64 times"
    return f"signal {-done.returncode}" if done.returncode < 0 else None


NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ADDS_BOS = {"Llama": True, "CodeLlama": True, "Gemma": True, "Cohere": True, "GPTNeoX": False}
"""Classes whose `add_bos_token` and `add_eos_token` replace the post-processor → default of `add_bos_token`."""

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")

_SHOWN = 8

NO_EOS = "none"
"""Value of `eos` for documents without an EOS token."""

Kind = Literal["tokenizers", "sentencepiece", "tiktoken"]


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """Tokenizer as workers get it. It is hashed and compared by its digest.

    Attributes:
        name: name of the directory or file.
        path: for errors.
        json: a `tokenizer.json` with all settings applied; for another kind, its file.
        digest: digest of `json` and of settings outside it.
        vocab_size: entries of the base vocabulary, without added tokens.
        max_token_id: the largest possible id.
        eos: token that is appended to each document; None to append none.
        special_tokens: the post-processor adds special tokens.
        around: ids before and after every text; None if the post-processor does more than that.
        split_special_tokens: special tokens in a text are plain text.
        pretokenizer: how text is split first, for a tiktoken file.
    """

    name: str
    path: str
    json: bytes = field(repr=False, compare=False)
    digest: str
    vocab_size: int
    max_token_id: int
    eos: str | None
    eos_id: int | None
    special_tokens: bool = False
    around: tuple[tuple[int, ...], tuple[int, ...]] | None = ((), ())
    split_special_tokens: bool = True
    kind: Kind = "tokenizers"
    pretokenizer: str | None = None

    @property
    def token_bytes(self) -> int:
        """1, 2 or 4: the width that Modalities uses for the base vocabulary, or more if an added token needs it."""
        return max(token_bytes_for_vocab(self.vocab_size), token_bytes_for_id(self.max_token_id))

    @property
    def num_ids(self) -> int:
        """Entries of the vocabulary including added tokens. Ids are smaller."""
        return max(self.vocab_size, self.max_token_id + 1)

    def load(self) -> Any:
        tokenizer = parse_tokenizer(self.json, self.path)
        tokenizer.encode_special_tokens = self.split_special_tokens
        return tokenizer


def load_spec(
    given: str | os.PathLike[str], store: Store, *, eos: str | None, special_tokens: bool
) -> tuple[TokenizerSpec, Any]:
    """Load a `tokenizer.json`, or a directory with one; return it also as a `tokenizers.Tokenizer`.

    `eos` is by default the `eos_token` of the files next to `tokenizer.json`.

    Raises:
        NotFound: nothing exists there.
        Corrupt: a file of the tokenizer is damaged.
        ConfigError: EOS is unknown, or isn't in the vocabulary.
        MissingExtra: `tokenizers` isn't installed.
    """
    path = absolute(local_path(given, "a tokenizer"))
    is_folder = store.is_folder(path)
    file = os.path.join(path, "tokenizer.json") if is_folder else path
    if is_folder and not store.exists(file):
        hint = "Use a Hugging Face folder with one (save_pretrained of a fast tokenizer writes it)"
        raise NotFound("the folder has no tokenizer.json", path=path, hint=hint)
    data = store.get(file)
    require_loadable(data, file)
    tokenizer = parse_tokenizer(data, file)
    if not tokenizer.get_vocab_size(with_added_tokens=True):
        raise Corrupt("this tokenizer has no tokens", path=file)
    config, named = (
        read_config(Place(store, file).folder().child(name)) if os.path.basename(file) == "tokenizer.json" else {}
        for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    own_eos = token_text(config.get("eos_token") or named.get("eos_token"))
    is_new = own_eos is not None and tokenizer.token_to_id(own_eos) is None
    split_special_tokens = False
    changed = tokenizer.truncation is not None or tokenizer.padding is not None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if is_folder and config:
        with no_panics("the settings in tokenizer_config.json don't match its tokenizer", file):
            changed |= _apply_config(tokenizer, config, named, file)
        is_new &= own_eos not in {one["content"] for one in (config.get("added_tokens_decoder") or {}).values()}
        split_special_tokens = bool(config.get("split_special_tokens"))
    if changed:
        data = tokenizer.to_str().encode()
    vocab: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if is_new and eos is None:
        raise _new_eos(path, str(own_eos), vocab.get(str(own_eos)), list_added_tokens(tokenizer))
    eos, eos_id = _find_eos(tokenizer, vocab, eos or own_eos, path)
    tokenizer.encode_special_tokens = split_special_tokens
    around: tuple[tuple[int, ...], tuple[int, ...]] | None = ((), ())
    if special_tokens:
        with no_panics("the post-processor of this tokenizer fails", file):
            around = _around(tokenizer)
        largest = max(itertools.chain(*(around or ())), default=0)
        if largest > max(vocab.values()):
            what = "the post-processor adds an id that isn't in the vocabulary"
            raise Corrupt(what, path=file, found=largest)
    spec = TokenizerSpec(
        name=os.path.basename(path),
        path=file,
        json=data,
        digest=tokenizer_digest(data, split_special_tokens=split_special_tokens),
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=False),
        max_token_id=max(vocab.values()),
        special_tokens=special_tokens,
        around=around,
        split_special_tokens=split_special_tokens,
        eos=eos,
        eos_id=eos_id,
    )
    return spec, tokenizer


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ids that a post-processor adds before and after every text; None if it does more."""
    if tokenizer.post_processor is None:
        return (), ()
    probes = [tokenizer.encode(text, add_special_tokens=True) for text in ("a", "a b", "")]
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "a b", "")]
    marks = probes[0].special_tokens_mask
    before = next((place for place, mark in enumerate(marks) if not mark), 0)
    after = next((place for place, mark in enumerate(reversed(marks)) if not mark), 0)
    prefix, suffix = tuple(probes[0].ids[:before]), tuple(probes[0].ids[len(marks) - after :])
    fits = all([*prefix, *inner, *suffix] == probe.ids for probe, inner in zip(probes, plain, strict=True))
    return (prefix, suffix) if fits else None


def read_config(file: Place) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        found = json.loads(file.store.get(file.path))
    except ValueError as error:
        raise Corrupt("the tokenizer file is not JSON", path=file.path, found=str(error)) from error
    if not isinstance(found, dict):
        raise Corrupt("the tokenizer file is not a JSON object", path=file.path, found=type(found).__name__)
    return found


def token_text(token: Any) -> str | None:
    """Return a token of a config, which is text or an object with a `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def list_added_tokens(tokenizer: Any) -> list[str]:
    return [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]


def _listed(tokens: Sequence[str]) -> str:
    return ", ".join(map(repr, tokens[:_SHOWN])) + (", …" if len(tokens) > _SHOWN else "") or "none"


def _new_eos(path: str, eos: str, new_id: int | None, special: Sequence[str]) -> ConfigError:
    others = [token for token in special if token != eos]
    hint = f"Choose another with eos= (--eos), or append none: --eos none. Added tokens: {_listed(others)}"
    if new_id is not None:
        hint += f". To use {eos!r} with the new id {new_id}, like transformers, pass it to --eos"
    what = f"the EOS token {eos!r} of the settings isn't in tokenizer.json"
    return ConfigError(what, path=path, hint=hint)


def _find_eos(
    tokenizer: Any, vocab: Mapping[str, int], eos: str | None, path: str
) -> tuple[str, int] | tuple[None, None]:
    if eos == NO_EOS:
        return None, None
    special = list_added_tokens(tokenizer)
    listed = _listed(special)
    if eos is None:
        raise ConfigError(
            "the EOS token is unknown",
            path=path,
            hint=f"Specify it with eos= (--eos), or append none: --eos none. The tokenizer's added tokens: {listed}",
        )
    if eos not in vocab:
        close = nearest(eos, special) or nearest(eos, vocab)
        raise ConfigError(
            f"the EOS token {eos!r} is not in the vocabulary",
            path=path,
            hint=(f"Did you mean {close!r}? " if close else "") + f"Added tokens: {listed}",
        )
    return eos, vocab[eos]


# --- settings of a directory, as transformers applies them


def _apply_config(tokenizer: Any, config: Mapping[str, Any], named: Mapping[str, Any], path: str) -> bool:
    if "added_tokens_decoder" not in config:
        config = {**{name: token for name, token in named.items() if name not in config}, **config}
    try:
        tokens = list(_tokens_to_add(tokenizer, config))
        if tokens:
            tokenizer.add_tokens(tokens)
        changed = _set_prefix_space(tokenizer, bool(config.get("add_prefix_space", False))) or bool(tokens)
        family = str(config.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer")
        if family in _ADDS_BOS:
            _set_bos_eos(tokenizer, {"add_bos_token": _ADDS_BOS[family], **config})
            changed = True
        return changed
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise Corrupt(
            "the settings in tokenizer_config.json don't match its tokenizer",
            path=os.path.join(os.path.dirname(path), "tokenizer_config.json"),
            found=str(error),
        ) from error


def _tokens_to_add(tokenizer: Any, config: Mapping[str, Any]) -> Iterator[Any]:
    """Yield tokens of the config that the vocabulary lacks. They get the next ids."""
    make = require("tokenizers", extra="tokenize").AddedToken
    present = list(tokenizer.get_added_tokens_decoder().values())
    known = {repr(token) for token in present}
    contents = {token.content for token in present}
    wanted: dict[str, Any] = config.get("added_tokens_decoder") or {}
    named = [config.get(name) for name in NAMED_TOKENS] + list(config.get("additional_special_tokens") or [])
    special = {content: token for token in named if (content := token_text(token)) is not None}
    for _, fields in sorted(wanted.items(), key=lambda item: int(item[0])):
        token = make(str(fields["content"]), special=bool(fields.get("special")), **_flags(fields))
        contents.add(token.content)
        if repr(token) not in known:
            token.special = token.special or token.content in special
            yield token
    for content, token in special.items():
        if content not in contents:
            yield make(content, special=True, **(_flags(token) if isinstance(token, Mapping) else {}))


def _flags(fields: Mapping[str, Any]) -> dict[str, bool]:
    return {name: bool(fields[name]) for name in _FLAGS if name in fields}


def _set_prefix_space(tokenizer: Any, add_prefix_space: bool) -> bool:
    pre_tokenizers = require("tokenizers", extra="tokenize").pre_tokenizers
    if tokenizer.pre_tokenizer is None:
        return False
    state = json.loads(tokenizer.pre_tokenizer.__getstate__())
    if state.get("add_prefix_space", add_prefix_space) == add_prefix_space:
        return False
    kind = getattr(pre_tokenizers, state.pop("type"))
    with contextlib.suppress(TypeError):  # transformers doesn't change what can't be made again
        tokenizer.pre_tokenizer = kind(**(state | {"add_prefix_space": add_prefix_space}))
    return True


def _set_bos_eos(tokenizer: Any, config: Mapping[str, Any]) -> None:
    processors = require("tokenizers", extra="tokenize").processors
    bos = (token_text(config.get("bos_token")) or "<s>") if config["add_bos_token"] else None
    eos = (token_text(config.get("eos_token")) or "</s>") if config.get("add_eos_token") else None
    single = " ".join([f"{bos}:0"] * (bos is not None) + ["$A:0"] + [f"{eos}:0"] * (eos is not None))
    tokens = [(token, tokenizer.token_to_id(token)) for token in (bos, eos) if token is not None]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
