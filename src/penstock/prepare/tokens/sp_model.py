"""SentencePiece `.model` files, encoded as the package's own `Encode` does: no BOS, no EOS, no sampling.

Control symbols such as `</s>` in a text are plain text, and user-defined symbols are tokens: the model itself says
which is which. A `tokenizer_config.json` beside the model has no influence. EOS is found by its piece, as in
Modalities (`PieceToId`).
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from penstock._naming import nearest
from penstock._optional import require
from penstock.errors import ConfigError, Corrupt
from penstock.prepare.tokens.tokenizer import NO_EOS, TokenizerSpec
from penstock.prepare.tokens.tokenizer_json import tokenizer_digest


def sentencepiece_spec(data: bytes, path: str, *, eos: str | None) -> TokenizerSpec:
    """The spec of a model.

    Args:
        data: the file.
        path: where it came from.
        eos: piece that ends a document, or `NO_EOS`; by default the model's own EOS.

    Raises:
        Corrupt: it is no SentencePiece model.
        ConfigError: it has no such piece, or no EOS.
    """
    processor = _load(data, path)
    size = processor.GetPieceSize()
    eos_id: int | None = None
    if eos == NO_EOS:
        eos = None
    elif eos is None:
        if processor.eos_id() < 0:
            raise ConfigError(
                "the model has no token that ends a document",
                path=path,
                hint="Choose one of its pieces with eos= (--eos), or append none: --eos none",
            )
        eos_id = processor.eos_id()
        eos = str(processor.IdToPiece(eos_id))
    else:
        eos_id = processor.PieceToId(eos)
        if processor.IdToPiece(eos_id) != eos:
            pieces = (processor.IdToPiece(token) for token in range(size))
            close = nearest(eos, pieces)
            raise ConfigError(
                f"the EOS token {eos!r} is not a piece of the model",
                path=path,
                hint=f"Did you mean {close!r}?" if close else None,
            )
    return TokenizerSpec(
        name=os.path.basename(path),
        path=path,
        json=data,
        digest=tokenizer_digest(data),
        vocab_size=size,
        max_token_id=size - 1,
        special_tokens=False,
        around=((), ()),
        split_special_tokens=True,
        eos=eos,
        eos_id=eos_id,
        kind="sentencepiece",
    )


@functools.lru_cache(maxsize=2)
def load_sentencepiece(spec: TokenizerSpec) -> Any:
    """A `sentencepiece.SentencePieceProcessor`."""
    return _load(spec.json, spec.path)


def special_pieces(spec: TokenizerSpec) -> list[str]:
    """Pieces that a text may hold and that are something else than words: control, unknown and user-defined ones."""
    processor = load_sentencepiece(spec)
    return [
        processor.IdToPiece(token)
        for token in range(processor.GetPieceSize())
        if not processor.IsByte(token) and (processor.IsControl(token) or processor.IsUnknown(token))
    ]


def gigatoken_json(data: bytes) -> bytes:
    """The `tokenizer.json` that gigatoken makes of a model, without control symbols: in a text they are plain text."""
    made = require("gigatoken._load.sentencepiece", extra="tokenize").sentencepiece_to_tokenizer_json(data)
    found = json.loads(made)
    control = {token["content"] for token in found["added_tokens"] if token["special"]}
    found["added_tokens"] = [token for token in found["added_tokens"] if not token["special"]]
    merges = found["model"]["merges"]
    found["model"]["merges"] = [pair for pair in merges if "".join(pair) not in control]
    return json.dumps(found, ensure_ascii=False).encode()


def _load(data: bytes, path: str) -> Any:
    sentencepiece = require("sentencepiece", extra="tokenize")
    processor = sentencepiece.SentencePieceProcessor()
    try:
        loaded = bool(data) and processor.LoadFromSerializedProto(data)
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        raise Corrupt("not a SentencePiece model", path=path, found=str(error)) from error
    if not loaded or not processor.GetPieceSize():
        raise Corrupt("not a SentencePiece model", path=path, found=f"{len(data)} bytes without pieces")
    return processor
