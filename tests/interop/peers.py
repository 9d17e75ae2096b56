"""The peers' real packages, each in a virtual environment of its own under `.venvs/`.

Used by the interop tests and by the benchmarks. Nothing of a peer is ever installed beside Penstock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
VENVS = ROOT / ".venvs"
SCRIPTS = Path(__file__).resolve().parent / "peer_scripts"
STUBS = Path(__file__).resolve().parent / "stubs"

_INSTALL_SECONDS = 1500
_SCRIPT_SECONDS = 600
_REPORTED_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer: what pip installs, how to see that it works, and the command that it brings.

    Attributes:
        requirements: all of one pip call, torch included: a later call could replace its build.
        alone: installed after these without what they depend on, of which we use nothing.
        probe: Python code that must run in a good environment.
        versions: distribution → version that a good environment has.
        required: whether the whole run is red without it.
        stubs: put our small stand-ins for packages that it imports and never needs first on its path.
    """

    requirements: tuple[str, ...]
    probe: str
    versions: Mapping[str, str]
    required: bool = True
    stubs: bool = False
    alone: tuple[str, ...] = ()


PEERS: dict[str, Peer] = {
    # The one whose tests take longest comes first.
    "energon": Peer(
        requirements=("megatron-energon==7.4.1", "torch==2.13.0", "mfusepy"),
        probe="import megatron.energon",
        versions={"megatron-energon": "7.4.1"},
    ),
    "modalities": Peer(
        # 0.5.0 imports a module that transformers 5 removed. The last ones are for ours inside Modalities.
        requirements=(
            *("modalities==0.5.0", "transformers<5", "torch==2.13.0", "msgspec>=0.18", "xxhash>=3.4"),
            *("PyYAML>=6", "click>=8.1", "rich>=13"),
        ),
        probe="import modalities.api, msgspec, xxhash, yaml, click, rich",
        versions={"modalities": "0.5.0"},
    ),
    "megatron": Peer(
        # The last ones are for our loader in its example.
        requirements=("megatron-core==0.16.1", "torch==2.13.0", "msgspec>=0.18", "xxhash>=3.4"),
        probe="import megatron.core.datasets.indexed_dataset, megatron.core.tensor_parallel, msgspec, xxhash",
        versions={"megatron-core": "0.16.1"},
        required=False,
    ),
    "jax": Peer(
        # No peer, but too large to stand beside the tests; ours is put on its path, so it needs what we need.
        requirements=("jax==0.10.2", "numpy", "msgspec", "xxhash"),
        probe="import jax, msgspec, xxhash",
        versions={"jax": "0.10.2"},
        required=False,
    ),
    "frameworks": Peer(
        # What the programs of `examples/` train with. torchtitan comes alone: its dataloaders need no more of what it
        # depends on than torchdata and tyro, and the rest is large and asks for older packages than transformers.
        requirements=(
            *(
                "torch==2.13.0",
                "transformers==5.24.0",
                "accelerate==1.15.0",
                "pytorch-lightning==2.6.6",
                "tyro==1.0.17",
            ),
            *("numpy", "msgspec>=0.18", "xxhash>=3.4", "PyYAML>=6"),
        ),
        alone=("torchtitan==0.3.0", "torchdata==0.11.0"),
        probe="import transformers, accelerate, pytorch_lightning, torchtitan.components.dataloader, msgspec, xxhash",
        versions={
            **{"transformers": "5.24.0", "accelerate": "1.15.0", "pytorch-lightning": "2.6.6"},
            **{"torchtitan": "0.3.0", "torchdata": "0.11.0"},
        },
    ),
    "zarr": Peer(
        # What seqax's own tools run on; zarr 3 is in the environment of our tests. Tensorstore reads the same arrays.
        requirements=("zarr==2.18.7", "numcodecs==0.15.1", "tensorstore==0.1.86"),
        probe="import zarr, numcodecs.blosc, tensorstore",
        versions={"zarr": "2.18.7"},
    ),
    "litdata": Peer(
        # Its own zstd, and zstandard for what it reads; the last one for rows that it keeps as Arrow's.
        requirements=("litdata==0.2.76", "torch==2.13.0", "zstd", "zstandard", "pyarrow"),
        probe="import litdata, zstd, zstandard, pyarrow",
        versions={"litdata": "0.2.76"},
    ),
    "levanter": Peer(
        # Its store alone: the trainers that its top package imports need far more. Levanter is released as
        # marin-levanter since 2025; job runners that the store imports are stand-ins.
        requirements=(
            *("tensorstore==0.1.81", "jax==0.10.2", "equinox", "jaxtyping", "flax", "dataclasses-json", "deepdiff"),
            *("safetensors", "draccus"),
            *("fsspec", "pyarrow", "braceexpand", "tqdm-loggable", "numpy"),
        ),
        alone=(*("marin-levanter==0.2.20.dev202606180959", "marin-haliax==0.2.20.dev202606180959", "aqtp==0.9.0"),),
        probe="import tensorstore, equinox, haliax, dataclasses_json, deepdiff, tqdm_loggable, braceexpand",
        versions={"marin-levanter": "0.2.20.dev202606180959"},
        stubs=True,
    ),
    "transformers": Peer(
        # Without torch: chat templates and tokenizers need none.
        requirements=("transformers==5.24.0", "tokenizers==0.23.3", "jinja2==3.1.6"),
        probe="import transformers, jinja2",
        versions={"transformers": "5.24.0"},
    ),
    "streaming": Peer(
        # It imports torchvision, whose builds fit one build of torch each: a stub stands for it.
        # The last ones are for our names in its programs.
        requirements=(
            *("mosaicml-streaming==0.13.0", "torch==2.13.0", "msgspec>=0.18", "xxhash>=3.4", "PyYAML>=6"),
            "zstandard",
        ),
        probe="import streaming, msgspec, xxhash, yaml, zstandard",
        versions={"mosaicml-streaming": "0.13.0"},
        stubs=True,
    ),
    "spark": Peer(
        # Its engine is Java's, which pip does not bring. The streaming package and ours write from its dataframes.
        requirements=(
            *("pyspark==3.5.9", "pandas", "pyarrow", "mosaicml-streaming==0.13.0", "torch==2.13.0", "msgspec>=0.18"),
            *("xxhash>=3.4", "PyYAML>=6", "zstandard"),
        ),
        probe="import pyspark, streaming, msgspec, yaml, shutil\nassert shutil.which('java'), 'java is not installed'",
        versions={"pyspark": "3.5.9", "mosaicml-streaming": "0.13.0"},
        required=False,
        stubs=True,
    ),
}


class PeerError(Exception):
    """A peer that could not be installed, or whose script failed; the message ends with its last lines."""


def python_of(name: str) -> Path:
    """Path of the peer's interpreter, whether it is there or not."""
    return VENVS / name / "bin" / "python"


def ensure(name: str) -> Path:
    """The peer's interpreter, after making its environment where a good one is missing.

    Raises:
        PeerError: it can't be made; the message has pip's last lines.
    """
    peer, python = PEERS[name], python_of(name)
    if python.exists() and works(name):
        return python
    try:
        _call([sys.executable, "-m", "venv", "--clear", str(VENVS / name)], _INSTALL_SECONDS)
        install = [str(python), "-m", "pip", "install", "--quiet"]
        _call([*install, *peer.requirements], _INSTALL_SECONDS)
        if peer.alone:
            _call([*install, "--no-deps", *peer.alone], _INSTALL_SECONDS)
        _call([str(python), "-c", _check(peer)], _SCRIPT_SECONDS, stubs=peer.stubs)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(f"{name}: its environment can't be made: {error}") from error
    return python


def works(name: str) -> bool:
    """Whether the peer's environment has the right versions and can be imported."""
    try:
        _call([str(python_of(name)), "-c", _check(PEERS[name])], _SCRIPT_SECONDS, stubs=PEERS[name].stubs)
    except (OSError, subprocess.SubprocessError, PeerError):
        return False
    return True


def run_script(name: str, script: Path, arguments: Mapping[str, Any] | Sequence[Any]) -> Any:
    """Run a script with the peer's interpreter; it gets `arguments` as JSON and its last line is JSON.

    Raises:
        PeerError: it ended with an error; the message has its last lines.
    """
    command = [str(python_of(name)), str(script), json.dumps(arguments, default=str)]
    output = _call(command, _SCRIPT_SECONDS, stubs=PEERS[name].stubs)
    return json.loads(output.splitlines()[-1])


def _check(peer: Peer) -> str:
    wanted = dict(peer.versions)
    return (
        f"from importlib.metadata import version\n"
        f"found = {{name: version(name) for name in {list(wanted)}}}\n"
        f"assert found == {wanted}, found\n"
        f"{peer.probe}\n"
    )


def _call(command: Sequence[str], seconds: float, *, stubs: bool = False) -> str:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    # A peer must not see our packages, nor ours the peer's.
    environment.pop("PYTHONPATH", None)
    if stubs:
        environment["PYTHONPATH"] = str(STUBS)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env=environment, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        tail = (done.stdout + done.stderr)[-_REPORTED_CHARACTERS:]
        raise PeerError(f"{' '.join(command)[:200]} ended with {done.returncode}: {tail}")
    return done.stdout
