"""Ids back to text, to look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from penstock._optional import require
from penstock.errors import Corrupt, NotFound, PenstockError
from penstock.prepare.tokens.tokenizer_json import parse_tokenizer, require_loadable
from penstock.store.hub_cache import located
from penstock.store.local import LocalStore
from penstock.store.resolve import local_path

Decode = Callable[[Sequence[int]], str]


def load_decoder(tokenizer: str | os.PathLike[str]) -> Decode:
    """What turns ids into text, special tokens shown, by the tokenizer's own library.

    Args:
        tokenizer: a `tokenizer.json` or its folder, a SentencePiece `.model`, or a name in the Hub's local cache.

    Raises:
        NotFound: nothing is there.
        Corrupt: it can't be read.
        MissingExtra: its library is not installed.
    """
    store, path = LocalStore(), local_path(located(os.fspath(tokenizer)), "a tokenizer")
    if store.is_folder(path):
        path = os.path.join(path, "tokenizer.json")
    if not store.exists(path):
        raise NotFound("no such tokenizer", path=path, hint="Name a tokenizer.json, its folder, or a .model")
    try:
        data = store.get(path)
        if path.endswith(".model"):
            pieces: Any = require("sentencepiece", extra="tokenize").SentencePieceProcessor(model_proto=data)
            return lambda ids: pieces.Decode([int(one) for one in ids])
        require_loadable(data, path)
        library: Any = parse_tokenizer(data, path)
    except (ImportError, PenstockError):
        raise
    except Exception as error:
        raise Corrupt("the tokenizer can't be read", path=path, found=str(error)) from error
    return lambda ids: library.decode([int(one) for one in ids], skip_special_tokens=False)
