"""`python -m benchmarks.peers.jax_step`: the step of the tiny MLP, compiled by JAX; with an interpreter that has it."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp

LR, DECAY, EPS, B1, B2 = 1e-4, 1e-2, 1e-8, 0.9, 0.999


def loss_of(parameters: dict[str, Any], x: Any, y: Any) -> Any:
    """Cross entropy of an MLP of two layers."""
    hidden = jax.nn.relu(x @ parameters["w1"] + parameters["b1"])
    scores = jax.nn.log_softmax(hidden @ parameters["w2"] + parameters["b2"])
    return -jnp.take_along_axis(scores, y[:, None], 1).mean()


@jax.jit
def step(parameters: Any, m: Any, v: Any, count: Any, x: Any, y: Any) -> Any:
    """Loss, and parameters and moments after AdamW's step."""
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    tree, count = jax.tree_util.tree_map, count + 1
    m = tree(lambda m, g: B1 * m + (1 - B1) * g, m, gradients)
    v = tree(lambda v, g: B2 * v + (1 - B2) * g * g, v, gradients)
    first, second = 1 - B1**count, 1 - B2**count

    def updated(p: Any, m: Any, v: Any) -> Any:
        return p * (1 - LR * DECAY) - LR * (m / first) / (jnp.sqrt(v / second) + EPS)

    return loss, tree(updated, parameters, m, v), m, v, count


def main() -> None:
    """Print samples in seconds per step, and the first and the last loss, as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    parameters = {
        "w1": jax.random.normal(keys[0], (64, 64)) / 8, "b1": jnp.zeros(64),
        "w2": jax.random.normal(keys[1], (64, 10)) / 8, "b2": jnp.zeros(10),
    }  # fmt: skip
    x, y = jax.random.normal(keys[2], (32, 64)), jax.random.randint(keys[3], (32,), 0, 10)
    zeros = jax.tree_util.tree_map(jnp.zeros_like, parameters)
    state: tuple[Any, ...] = (parameters, zeros, zeros, jnp.zeros((), jnp.float32))
    losses, samples = [], []
    end = 0.0
    while len(losses) < 10 or time.perf_counter() < end:
        begin = time.perf_counter()
        loss, *rest = step(*state, x, y)
        losses.append(float(loss))
        state = tuple(rest)
        if len(losses) == 5:
            end = time.perf_counter() + args.seconds
        if len(losses) > 5:
            samples.append(time.perf_counter() - begin)
    assert losses[-1] < losses[0], f"the loss did not fall: {losses[0]} -> {losses[-1]}"
    print(
        json.dumps({"samples": samples, "first_loss": losses[0], "last_loss": losses[-1], "version": jax.__version__})
    )


if __name__ == "__main__":
    main()
