"""Input for the benchmarks, generated once in `bench/data/`. The bytes are the same on every machine.

To a tokenizer, the text resembles English: words of a heavy-tailed (Zipf) vocabulary, numbers, sentences, and
documents of log-normal length with a mean of 400 words (1.9 KB).
"""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from harness import DATA
from numpy.typing import NDArray

EOS = "<|endoftext|>"
VOCAB_SIZE = 32_000
TEXT_BYTES = 100_000_000
LARGE_BYTES = 1_000_000_000
MANY_TOKENS = 60_000_000
HUGE_TOKENS = 100_000_000_000
EOS_ID = 0

_N_WORDS = 300_000
_MEAN_WORDS, _SIGMA = 400, 0.8
_DOCS_AT_ONCE = 2000
_TRAIN_EVERY = 5


def made(name: str, make: Callable[[Path], None]) -> Path:
    """Return the file or folder `name`. If missing, create it under a temporary name and rename it."""
    path = DATA / name
    if not path.exists():
        print(f"  creating {path.name} …", flush=True)
        DATA.mkdir(exist_ok=True)
        unfinished = DATA / f"{name}.{os.getpid()}.tmp"
        make(unfinished)
        unfinished.rename(path)
    return path


def text(size_bytes: int = TEXT_BYTES) -> Path:
    """Return JSONL of about `size_bytes` with `id` and `text`."""
    return made(f"text-{size_bytes // 10**6}mb.jsonl", lambda path: _write_text(path, size_bytes))


def short_lines(size_bytes: int = LARGE_BYTES) -> Path:
    """Return JSONL of about `size_bytes` in lines of about 1 KB: the same 16 MB, repeated."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(2)
        letters = rng.integers(97, 123, 2000, dtype=np.uint8).tobytes().decode()
        lengths = rng.integers(500, 1500, 16_000).tolist()
        block = "".join(json.dumps({"id": i, "text": letters[:n]}) + "\n" for i, n in enumerate(lengths)).encode()
        with path.open("wb") as file:
            for _ in range(max(1, size_bytes // len(block))):
                file.write(block)

    return made(f"short-lines-{size_bytes // 10**6}mb.jsonl", make)


def tokenizer() -> Path:
    """Return a Hugging Face folder with a byte-level BPE of 32,000 entries, trained on a fifth of `text()`."""

    def make(folder: Path) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        model = Tokenizer(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        with text().open("rb") as file:
            model.train_from_iterator(
                (json.loads(line)["text"] for i, line in enumerate(file) if i % _TRAIN_EVERY == 0), trainer
            )
        folder.mkdir()
        model.save(str(folder / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "clean_up_tokenization_spaces": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": EOS}))

    return made("bpe-32k", make)


def packed_tokens(times: int = 1) -> Path:
    """Return a packed file of 60 M two-byte tokens in a million documents, each ending in id 0, repeated `times` times.

    It isn't written by Penstock.
    """

    def make(path: Path) -> None:
        rng = np.random.default_rng(3)
        lengths = np.maximum(2, rng.lognormal(np.log(60) - _SIGMA**2 / 2, _SIGMA, MANY_TOKENS // 60).astype(np.int64))
        stops = np.cumsum(lengths)
        tokens = rng.integers(1, VOCAB_SIZE, stops[-1], dtype=np.uint16)
        tokens[stops - 1] = EOS_ID
        lengths = np.tile(lengths, times)
        starts = 2 * (np.cumsum(lengths) - lengths)
        with path.open("wb") as file:
            file.write(struct.pack("<QI", tokens.nbytes * times, 2))
            for _ in range(times):
                tokens.tofile(file)
            file.write(pickle.dumps(list(zip(starts.tolist(), (2 * lengths).tolist(), strict=True)), protocol=4))

    return made("packed-60m.pbin" if times == 1 else f"packed-{times}x60m.pbin", make)


def sparse_packed(n_tokens: int, token_bytes: int) -> Path:
    """Return a sparse packed file of zeros with one document."""

    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.write(struct.pack("<QI", n_tokens * token_bytes, token_bytes))
            file.seek(n_tokens * token_bytes, os.SEEK_CUR)
            file.write(pickle.dumps([(0, n_tokens * token_bytes)], protocol=4))

    return made(f"sparse-{n_tokens // 10**6}m-{token_bytes}.pbin", make)


def _write_text(path: Path, size_bytes: int) -> None:
    written, number = 0, 0
    with path.open("wb") as file:
        for document in _documents(np.random.default_rng(1)):
            line = json.dumps({"id": number, "text": document}, ensure_ascii=False).encode() + b"\n"
            written, number = written + file.write(line), number + 1
            if written >= size_bytes:
                return


def _documents(rng: np.random.Generator) -> Iterator[str]:
    forms = _word_forms(rng)
    chance = 1 / (np.arange(_N_WORDS) + 2.7) ** 1.05
    cumulative = np.cumsum(chance) / chance.sum()
    kinds = np.array([0] * 80 + [1] * 12 + [2] * 7 + [3])
    while True:
        lengths = np.maximum(1, rng.lognormal(np.log(_MEAN_WORDS) - _SIGMA**2 / 2, _SIGMA, _DOCS_AT_ONCE).astype(int))
        words = np.searchsorted(cumulative, rng.random(lengths.sum()))
        pieces = forms[np.minimum(words, _N_WORDS - 1), rng.choice(kinds, len(words))].tolist()
        stops = np.cumsum(lengths)
        for start, stop in zip((stops - lengths).tolist(), stops.tolist(), strict=True):
            yield "".join(pieces[start:stop]).lstrip(" ,.\n")


def _word_forms(rng: np.random.Generator) -> NDArray[np.object_]:
    """Return str[n_words, 4]: each word inside a sentence, starting one, after a comma, and starting a paragraph."""
    onsets = [
        "b",
        "c",
        "d",
        "f",
        "g",
        "h",
        "l",
        "m",
        "n",
        "p",
        "r",
        "s",
        "t",
        "v",
        "w",
        "st",
        "th",
        "tr",
        "ch",
        "pr",
        "",
    ]
    vowels = ["a", "e", "i", "o", "u", "ea", "ou", "ai", "io", "é"]
    codas = ["", "", "", "n", "r", "s", "t", "l", "d", "ng", "st", "ck"]
    syllables = [onset + vowel + coda for onset in onsets for vowel in vowels[:-1] for coda in codas] + ["é", "ñ", "ü"]
    counts = rng.choice([1, 2, 3, 4], _N_WORDS, p=[0.15, 0.45, 0.3, 0.1])
    drawn = iter(rng.integers(0, len(syllables), counts.sum()).tolist())
    words = ["".join(syllables[next(drawn)] for _ in range(count)) for count in counts.tolist()]
    # Frequent words are short, as in every language; one word of fifty is a number.
    nearness = rng.normal(0, 2, _N_WORDS).tolist()
    words = [word for _, word in sorted((len(word) + extra, word) for word, extra in zip(words, nearness, strict=True))]
    for i in range(25, _N_WORDS, 50):
        words[i] = str(i * 7919 % 100_000)
    forms = np.empty((_N_WORDS, 4), dtype=object)
    for i, word in enumerate(words):
        upper = word.capitalize()
        forms[i] = (" " + word, ". " + upper, ", " + word, ".\n\n" + upper)
    return forms


def jpegs(count: int, side: int) -> Iterator[bytes]:
    """Yield images of `side` × `side` pixels: noise over a ramp."""
    import simplejpeg

    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 200, side)[:, None, None]
    for _ in range(count):
        pixels = np.ascontiguousarray((ramp + rng.integers(0, 55, (side, side, 3))).astype(np.uint8))
        yield simplejpeg.encode_jpeg(pixels, 90)
