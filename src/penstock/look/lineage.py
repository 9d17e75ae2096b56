"""Which documents of tokens were made of which samples, as far as side files tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np

from penstock.errors import ConfigError
from penstock.formats import open_source
from penstock.formats._excluding import stored
from penstock.look.samples import Dataset
from penstock.look.trace import is_same
from penstock.store.exclude_list import NO_LIST
from penstock.store.place import Place
from penstock.store.row_map import read_row_map
from penstock.types import Manifest

_IN_ORDER = (None, "convert")
"""Commands after which documents stand as their inputs do; None: `pack`."""


def documents_made_of(
    tokens: Dataset, source: Place, num_samples: int, indices: Sequence[int]
) -> dict[int, str | None]:
    """Number of a document → None, of those that were made of samples of `source`.

    By the row map of the tokens, where they were packed with `keep_map`. Else a document is the sample of the same
    number among those of all inputs, one input after another, if there are as many documents as samples.

    Args:
        tokens: the documents.
        source: what they were made of, or a part of that.
        num_samples: of the source.
        indices: of its samples.

    Raises:
        ConfigError: side files don't say it.
    """
    path = tokens.place.path
    manifest = getattr(stored(tokens.source), "manifest", None)
    if not isinstance(manifest, Manifest) or not manifest.inputs:
        raise _unknown(path, "no side file says what it was made of")
    row_map = read_row_map(tokens.place, manifest)
    if row_map is not None:
        named = source.absolute.rpartition("/")[2]
        numbers = [number for number in row_map.numbers_of(named) if is_same(source, row_map.inputs[number].digest)]
        if not numbers:
            raise _unknown(path, f"its row map names no {named} as it is now")
        found = [row_map.samples_of(number, np.asarray(indices, np.int64)) for number in numbers]
        return dict.fromkeys(np.concatenate(found).tolist())
    command = manifest.options.get("command")
    if command not in _IN_ORDER or "excluded" in manifest.options:
        raise _unknown(path, f"it was made by {command or 'pack'}, which changed the order or left documents out")
    known = manifest.inputs
    last = source.absolute.rpartition("/")[2]
    here = [name for name, digest in known.items() if name.split("/")[-1] == last and is_same(source, digest)]
    if not here:
        raise _unknown(path, f"its side file names other inputs, or {source.shown} changed: {', '.join(known)[:200]}")
    counts = dict.fromkeys(here, num_samples)
    if len(known) > 1:
        counts |= dict(_counts(tokens.place, known, set(here), source))
    if sum(counts.values()) != len(tokens):
        raise _unknown(path, f"{len(tokens)} documents of {sum(counts.values())} samples: some gave none, or several")
    begins = dict(zip(known, accumulate([counts[name] for name in known], initial=0), strict=False))
    return {begins[name] + index: None for name in here for index in indices}


def _counts(tokens: Place, known: Mapping[str, str], here: set[str], source: Place) -> Iterator[tuple[str, int]]:
    """Samples of the other inputs, which lie beside the source, beside the tokens, or in the folder above."""
    for name, digest in known.items():
        if name in here or any(part in ("", ".", "..") for part in name.split("/")):
            continue
        folders = (source.folder(), source.folder().folder(), tokens.folder(), tokens.folder().folder())
        places = (folder.child(name) for folder in folders)
        found = next((one for one in places if one.exists() and is_same(one, digest)), None)
        if found is None:
            raise _unknown(tokens.path, f"its input {name} is not to be found as it was")
        yield name, len(open_source(found.path, excludes=NO_LIST))


def _unknown(path: str, why: str) -> ConfigError:
    hint = "Exclude there by number (--indices; penstock find --text tells them), or pack anew with --keep-map"
    return ConfigError("it is not known which documents were made of these samples", path=path, found=why, hint=hint)
