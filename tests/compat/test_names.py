"""Modules and names that programs imported from `penstock.compat` of 0.2.0, and that pickles name, still exist."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden" / "compat-names" / "0.2.0.txt"
"""Each module of a peer's, and each module where one of its names was defined: `module: names`."""
NAMES = {
    module.rstrip(":"): names.split()
    for module, _, names in (line.partition(": ") for line in GOLDEN.read_text().splitlines())
}
WITHOUT_SPARK = ("streaming.base.converters", "streaming.base.converters.dataframe_to_mds")


@pytest.mark.parametrize("module", NAMES)
def test_every_module_and_name_of_0_2_0_is_there(module: str) -> None:
    name = f"penstock.compat.{module}"
    if module in WITHOUT_SPARK and find_spec("pyspark") is None:
        with pytest.raises(ImportError, match="pyspark"):
            importlib.import_module(name)
        return
    found = importlib.import_module(name)
    assert found.__name__
    assert not hasattr(found, "no_such_name")
    for one in NAMES[module]:
        value = getattr(found, one)
        assert pickle.loads(f"c{name}\n{one}\n.".encode()) is value, "a pickle that names it"
        assert one.startswith("_") or one in dir(found)


@pytest.mark.parametrize(
    "line",
    [
        "from penstock.compat.energon.flavors.webdataset import DefaultDecoderWebdatasetFactory",
        "import penstock.compat.streaming.base.format.mds.encodings as it; it._encodings",
        "from penstock.compat.streaming.base.format.mds import MDSWriter, encodings",
        "import penstock.compat.energon as en; en.wrappers.batch_dataset.BatchDataset; en.flavors.ocr.OCRSample",
        "from penstock.compat.streaming.vision.cifar10 import *; StreamingCIFAR10",
        "import penstock.compat.modalities.dataloader.dataset as it, inspect; inspect.getmodule(it.MemMapDataset)",
    ],
)
def test_first_import_of_a_process(line: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", line], check=True)
