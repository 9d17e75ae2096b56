import sys
import tempfile
from pathlib import Path

import numpy as np
import things  # noqa: F401

import penstock as ps

folder = tempfile.TemporaryDirectory()
writer = ps.create(
    Path(folder.name) / "out", format="mds", columns={"id": "ndarray"}, compression="zstd", size_limit=1000
)
for number in range(200):
    writer.write({"id": np.full(100, number)})
print("done")
sys.exit(2)
