"""What a `--tokenizer` names: a tokenizer.json or its folder, a SentencePiece model, or a tiktoken rank file."""

from __future__ import annotations

import os
from dataclasses import replace

from penstock.errors import ConfigError
from penstock.prepare.tokens.engines import Reference, make_reference
from penstock.prepare.tokens.sp_model import sentencepiece_spec
from penstock.prepare.tokens.tiktoken_ranks import is_rank_file, tiktoken_spec
from penstock.prepare.tokens.tokenizer import TokenizerSpec, load_spec, read_config
from penstock.store.hub_cache import located
from penstock.store.local import LocalStore
from penstock.store.place import Place
from penstock.store.resolve import absolute, local_path

_MODELS = ("tokenizer.model", "sentencepiece.model", "spiece.model", "tokenizer.tiktoken")
_SUFFIXES = (".model", ".tiktoken")
_IN_FOLDERS = (*_SUFFIXES, ".json", ".jinja", ".txt", ".py")


def load_tokenizer(
    given: str | os.PathLike[str],
    store: LocalStore,
    *,
    eos: str | None = None,
    special_tokens: bool = True,
    pretokenizer: str | None = None,
) -> tuple[TokenizerSpec, Reference]:
    """The tokenizer at a path, and its own library's encoder. The content of a file decides what kind it is.

    Args:
        given: a file, or a folder with a `tokenizer.json`, a `.model` or a `.tiktoken` file; or a name in the Hub's
            local cache.
        store: where it is.
        eos: token that ends a document, or `NO_EOS`; by default the tokenizer's own.
        special_tokens: whether a post-processor adds its special tokens.
        pretokenizer: how a tiktoken file's text is split; see `penstock.prepare.tokens.tiktoken_ranks`.

    Raises:
        NotFound: nothing is there.
        Corrupt: a file of the tokenizer is damaged.
        ConfigError: an option does not fit the tokenizer, or no EOS is known.
        MissingExtra: its library is not installed.
    """
    named, given = os.fspath(given), located(os.fspath(given))
    if given != named:
        spec, reference = load_tokenizer(
            given, store, eos=eos, special_tokens=special_tokens, pretokenizer=pretokenizer
        )
        return replace(spec, name=named.rpartition("/")[2]), reference
    path = absolute(local_path(given, "a tokenizer"))
    file = _model_in(store, path) if store.is_folder(path) else path
    data = store.get(file) if file is not None else b"{"
    is_ranks = is_rank_file(data)
    if pretokenizer is not None and not is_ranks:
        raise ConfigError("a pretokenizer only applies to tiktoken files", path=path, found=pretokenizer)
    if file is None or _is_json(data, file):
        spec, tokenizer = load_spec(given, store, eos=eos, special_tokens=special_tokens)
        return spec, make_reference(spec, tokenizer)
    if is_ranks:
        config = read_config(Place(store, file).folder().child("tokenizer_config.json"))
        spec = tiktoken_spec(data, file, eos=eos, pretokenizer=pretokenizer, config=config)
    else:
        spec = sentencepiece_spec(data, file, eos=eos)
    return spec, make_reference(spec)


def tokenizer_files(given: str | os.PathLike[str]) -> list[str]:
    """The tokenizer's file, or those of its folder: what else lies there, such as an output, is none of its files."""
    named = located(os.fspath(given))
    if not os.path.isdir(named):
        return [named]
    return [os.path.join(named, name) for name in os.listdir(named) if name.endswith(_IN_FOLDERS)]


def _is_json(data: bytes, file: str) -> bool:
    """Whether a file is to be read as a tokenizer.json; so is a damaged one, for its error."""
    return data.lstrip()[:1] == b"{" or not (file.endswith(_SUFFIXES) or is_rank_file(data))


def _model_in(store: LocalStore, folder: str) -> str | None:
    """The model file of a folder without a `tokenizer.json`."""
    if store.exists(os.path.join(folder, "tokenizer.json")):
        return None
    for name in _MODELS:
        if store.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    found = sorted(name for name in os.listdir(folder) if name.endswith(_SUFFIXES))
    return os.path.join(folder, found[0]) if len(found) == 1 else None
