"""mds: samples of typed columns in binary shards, as written by MosaicML Streaming.

A shard, little-endian:

| bytes | content |
|---|---|
| u32 | n, number of samples |
| u32 × (n + 1) | offsets of the samples in the file, and the end of the last one |
| JSON | the columns and options of the writer, up to the start of the first sample |
| … | the samples, back to back: `u32 size` for each column of variable size, then the values of all columns |

The reader only uses `index.json` (see `penstock.formats.shards.index_json`). Encodings are documented in
`penstock.codec.fields`.

Limits: 2^32 - 1 bytes per shard. Checked against mosaicml-streaming 0.13.0.

Files: `layout` bytes of samples, and reading them · `writer` · the common part of all shard formats is in
`penstock.formats.shards`.
"""

from __future__ import annotations

from penstock.formats.shards.format import ShardFormat
from penstock.formats.shards.mds.layout import mds_codec
from penstock.formats.shards.mds.writer import mds_encoder
from penstock.types import Traits

FORMAT = ShardFormat(
    name="mds",
    stored="mds",
    traits=Traits(
        write=True,
        splits=True,
        remote=True,
        verify=True,
        repair=True,
        hashes=True,
        images=True,
        suffixes=(".mds",),
        made_by="MosaicML Streaming",
    ),
    codec=mds_codec,
    encoder=mds_encoder,
)
