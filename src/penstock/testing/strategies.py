"""Hypothesis strategies for the data that Penstock reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from penstock.types import Sample, TokenArray

EXAMPLES = 20


def for_all(*strategies: SearchStrategy[Any], examples: int = EXAMPLES) -> Callable[[Callable[..., None]], None]:
    """Run the decorated function at once, on examples of `strategies`, the same ones in every run.

    Used for tests in suites whose strategy belongs to the inheriting class.

    Examples:
        >>> from hypothesis import strategies as st
        >>> from penstock.testing.strategies import for_all
        >>> @for_all(st.integers(), st.integers())
        ... def addition_commutes(a, b):
        ...     assert a + b == b + a
    """

    def run(law: Callable[..., None]) -> None:
        settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=tuple(HealthCheck),  # pyright: ignore[reportArgumentType]
        )(given(*strategies)(law))()

    return run


@st.composite
def token_documents(
    draw: st.DrawFn,
    *,
    max_id: int = 65_535,
    dtype: str = "uint16",
    min_docs: int = 0,
    max_docs: int = 12,
    max_tokens: int = 40,
    min_tokens: int = 0,
    eos_id: int | None = None,
) -> list[TokenArray]:
    """Return documents as uint[n_tokens], including the extreme ids; with `eos_id` each ends in it once.

    Examples:
        >>> from penstock.testing.strategies import for_all, token_documents
        >>> @for_all(token_documents(max_id=300, eos_id=0))
        ... def every_document_ends_with_eos(documents):
        ...     assert all(document[-1] == 0 and 0 not in document[:-1] for document in documents)
    """
    ids = st.one_of(st.sampled_from([0, max_id]), st.integers(0, max_id))
    if eos_id is not None:
        ids = ids.filter(lambda token: token != eos_id)
    ends = [] if eos_id is None else [eos_id]
    lists = draw(
        st.lists(st.lists(ids, min_size=min_tokens, max_size=max_tokens), min_size=min_docs, max_size=max_docs)
    )
    return [np.array([*tokens, *ends], dtype=dtype) for tokens in lists]


def token_samples(**options: Any) -> SearchStrategy[list[Sample]]:
    """Return samples of a token source: `{"tokens": uint[n_tokens]}`; options of `token_documents`.

    Examples:
        >>> import numpy as np
        >>> from penstock.testing.strategies import for_all, token_samples
        >>> @for_all(token_samples(dtype="uint32", min_tokens=1))
        ... def samples_have_one_field(samples):
        ...     assert all(sample["tokens"].dtype == np.uint32 and len(sample) == 1 for sample in samples)
    """
    return token_documents(**options).map(lambda documents: [{"tokens": document} for document in documents])


def texts(max_size: int = 30) -> SearchStrategy[str]:
    r"""Return text of any script, with the line ends and separators other than `\n`, without lone surrogates.

    Examples:
        >>> from penstock.testing.strategies import for_all, texts
        >>> @for_all(texts(max_size=10))
        ... def utf8_keeps_text(text):
        ...     assert text.encode().decode() == text
    """
    odd = st.sampled_from(["", "\r", "\r\n", "\u2028", "\x85", "\ufeff", '"', "\\", "\x00", "😀", "\n"])
    return st.one_of(odd, st.text(st.characters(exclude_categories=["Cs"]), max_size=max_size))


def json_values() -> SearchStrategy[Any]:
    """Return values that a JSON round trip preserves.

    Examples:
        >>> import json
        >>> from penstock.testing.strategies import for_all, json_values
        >>> @for_all(json_values())
        ... def json_keeps_values(value):
        ...     assert json.loads(json.dumps(value)) == value
    """
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 53), 1 << 53),
        st.floats(allow_nan=False, allow_infinity=False),
        texts(),
    )
    return st.recursive(plain, _containers, max_leaves=6)


def json_samples(min_size: int = 0, max_size: int = 12) -> SearchStrategy[list[Sample]]:
    """Return samples of a JSONL file: objects with a `text` and sometimes other fields.

    Examples:
        >>> from penstock.testing.strategies import for_all, json_samples
        >>> @for_all(json_samples(min_size=1))
        ... def every_sample_has_text(samples):
        ...     assert all(isinstance(sample["text"], str) for sample in samples)
    """
    more = st.dictionaries(texts(8), json_values(), max_size=2)
    return st.lists(st.builds(_with_text, more, texts()), min_size=min_size, max_size=max_size)


def positions(limit: int, max_size: int = 50) -> SearchStrategy[Any]:
    """Return int64[k]: positions or indices in `[0, limit)`, with repeats, including the first and the last.

    Examples:
        >>> from penstock.testing.strategies import for_all, positions
        >>> @for_all(positions(100, max_size=20))
        ... def positions_are_below_the_limit(indices):
        ...     assert len(indices) <= 20
        ...     assert ((indices >= 0) & (indices < 100)).all()
    """
    one = st.one_of(st.sampled_from([0, limit - 1, limit // 2]), st.integers(0, limit - 1))
    return st.lists(one, max_size=max_size).map(lambda values: np.array(values, dtype=np.int64))


def _containers(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts(8), inner, max_size=3))


def _with_text(more: Sample, text: str) -> Sample:
    return {**more, "text": text}
