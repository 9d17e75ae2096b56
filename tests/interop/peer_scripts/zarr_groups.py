"""flat-tokens groups by zarr 2 and tensorstore.

Argument: JSON {"write": [[npz, path, profile], …], "read": [[path, npz, by], …]}. `write` comes first: an npz has
`encoded`, `starts`, `limit`; a profile is `"raw"`, `"seqax"` or `"zstd"`. `read` is by `"zarr"` or `"tensorstore"`.
"""

import json
import sys

import numpy as np
import tensorstore
import zarr
from numcodecs import Blosc, Delta, Zstd

BLOSC = Blosc(cname="lz4", clevel=5, shuffle=Blosc.BITSHUFFLE)
PROFILES = {
    "raw": {"compressor": None},
    "seqax": {"compressor": BLOSC, "filters": [Delta(dtype="i8")]},
    "zstd": {"compressor": Zstd(1)},
}


def write(npz, path, profile):
    """As seqax's writer does: arrays that grow by appending."""
    options = dict(PROFILES[profile])
    filters = options.pop("filters", None)
    with np.load(npz) as data:
        encoded, starts, limit = data["encoded"], data["starts"], int(data["limit"])
    group = zarr.open_group(path, mode="w-")
    group.attrs["max_token_id"] = limit
    tokens = group.create_dataset("encoded_tokens", shape=0, dtype=np.uint32, chunks=1000, fill_value=None, **options)
    ends = group.create_dataset("seq_starts", data=starts[:1], dtype=np.uint64, chunks=64, filters=filters, **options)
    for part in np.array_split(encoded, 7):
        tokens.append(part)
    for part in np.array_split(starts[1:], 5):
        ends.append(part)


def read(path, npz, by):
    if by == "zarr":
        group = zarr.open_group(path, mode="r")
        encoded, starts, limit = group["encoded_tokens"][:], group["seq_starts"][:], group.attrs["max_token_id"]
        assert sorted(group) == ["encoded_tokens", "seq_starts"]
    else:
        found = {}
        for name in ("encoded_tokens", "seq_starts"):
            for driver in ("zarr", "zarr3"):
                spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/{name}"}}
                try:
                    found[name] = tensorstore.open(spec, read=True).result().read().result()
                    break
                except ValueError:
                    continue
        encoded, starts, limit = found["encoded_tokens"], found["seq_starts"], -1
    np.savez(npz, encoded=encoded, starts=starts, limit=limit)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    for item in arguments.get("write", []):
        write(*item)
    for item in arguments.get("read", []):
        read(*item)
    print(json.dumps("done"))
