"""Modules and names that programs imported from `penstock.compat` of 0.2.0, and that pickles name, still exist."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.compat import energon as en

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


@pytest.mark.parametrize(
    ("function", "name"),
    [({}, "_as_list"), ({"batch_mix_fn": en.homogeneous_concat_mix}, "homogeneous_concat_mix")],
)
def test_our_functions_have_the_names_of_0_2_0_in_states(function: dict[str, Any], name: str) -> None:
    config = en.WorkerConfig(rank=0, world_size=1, num_workers=0)
    data = GOLDEN.parents[1] / "energon-loading" / "data" / "ds_a"
    samples = en.get_val_dataset(data, split_part="train", worker_config=config, batch_size=None)
    made: Any = en.MixBatchDataset((samples, 1.0), batch_size=2, worker_config=config, **function)
    assert f"'penstock.compat.energon.wrappers.mix_batch_dataset:{name}'" in repr(made.config())
