"""JAX over a mesh: a batch is one array over all devices, and a step is one compiled function.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/jax_mesh.py tokens.pbin checkpoints 200
"""

from __future__ import annotations

import pickle  # only of files that this program wrote
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from penstock.load.jax import JaxLoader
from toy import VOCABULARY, arguments, note, replace, windows

GLOBAL_BATCH = 12
SAVE_EVERY = 5
RATE = 20.0


def loss_of(weights: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the mean cross entropy of the next token."""
    scores = jax.nn.log_softmax(weights["embedding"][inputs] @ weights["head"])
    return -jnp.take_along_axis(scores, targets[..., None], -1).mean()


@jax.jit
def train_step(weights: dict[str, jax.Array], inputs: jax.Array, targets: jax.Array) -> Any:
    """Return `(loss, weights)` after one step of gradient descent."""
    loss, slopes = jax.value_and_grad(loss_of)(weights, inputs, targets)
    return loss, jax.tree.map(lambda weight, slope: weight - RATE * slope, weights, slopes)


def main() -> None:
    """Train until `steps`."""
    args = arguments()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    rows = NamedSharding(mesh, PartitionSpec("data", None))
    first, second = jax.random.split(jax.random.key(0))
    weights = {
        "embedding": jax.random.normal(first, (VOCABULARY, 64)) * 0.1,
        "head": jax.random.normal(second, (64, VOCABULARY)) * 0.1,
    }
    loader = JaxLoader(windows(args.tokens), GLOBAL_BATCH, sharding=rows)

    last = args.folder / "last"
    if last.exists():
        weights, state = pickle.loads(last.read_bytes())
        loader.load_state_dict(state)
    weights = jax.device_put(weights, everywhere)

    batches = iter(loader)
    for step in range(loader.step, args.steps):
        batch = next(batches)
        loss, weights = train_step(weights, batch["inputs"], batch["targets"])
        note(args.notes, jax.process_index(), step, batch["inputs"], float(loss))
        if (step + 1) % SAVE_EVERY == 0:
            saved = pickle.dumps((jax.tree.map(np.asarray, weights), loader.state_dict()))
            replace(last, lambda path, saved=saved: path.write_bytes(saved))


if __name__ == "__main__":
    main()
