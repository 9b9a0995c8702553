"""JAX's side of the benchmarks: forward, backward and optax's update as one jitted step whose state is donated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gluongraph.bench.jax_nets import MODELS, Maker
from gluongraph.bench.workloads import Array, Workload, batches, update_shapes


def cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all positions."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()


LOSSES: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "cross-entropy": cross_entropy,
    "l2": lambda outputs, labels: 0.5 * jnp.square(outputs - labels).mean(),
    "logistic": lambda outputs, labels: optax.sigmoid_binary_cross_entropy(outputs, labels).mean(),
}


def optimizer(workload: Workload) -> Any:
    """The workload's optimizer in optax's names."""
    hyper = workload.hyper
    rate, decay = hyper["learning_rate"], hyper.get("wd", 0.0)
    if workload.optimizer == "adamw":
        return optax.adamw(rate, weight_decay=decay)
    if workload.optimizer not in ("sgd", "adam"):
        raise SystemExit(f"the JAX twin has no {workload.optimizer}")
    made = optax.adam(rate) if workload.optimizer == "adam" else optax.sgd(rate, hyper.get("momentum"))
    return optax.chain(optax.add_decayed_weights(decay), made) if decay else made


def arrays(batch: tuple[Array, ...]) -> tuple[jax.Array, ...]:
    """A batch, images with channels last."""
    return tuple(jnp.asarray(part.transpose(0, 2, 3, 1) if part.ndim == 4 else part) for part in batch)


def contender(workload: Workload, threads: int) -> Callable[[], Any]:
    """A function that takes one training step and returns the loss; threads are set by affinity and NPROC."""
    rule = optimizer(workload)
    if workload.model == "update":
        return _update(workload, rule)
    params, forward = MODELS[workload.model](Maker(), **workload.size)
    criterion = LOSSES[workload.loss]

    def loss(params: Any, *batch: jax.Array) -> jax.Array:
        return criterion(forward(params, *batch[:-1]), batch[-1])

    def whole(params: Any, state: Any, *batch: jax.Array) -> tuple[Any, Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        changes, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, changes), state, value

    compiled = jax.jit(whole, donate_argnums=(0, 1))
    state = rule.init(params)
    data = cycle([arrays(batch) for batch in batches(workload)])

    def step() -> Any:
        nonlocal params, state
        params, state, value = compiled(params, state, *next(data))
        return value.block_until_ready()

    return step


def _update(workload: Workload, rule: Any) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    params, gradients = (
        [jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in update_shapes(workload)] for _ in range(2)
    )
    state = rule.init(params)

    def whole(params: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
        changes, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, changes), state

    compiled = jax.jit(whole, donate_argnums=(0, 2))

    def step() -> Any:
        nonlocal params, state
        params, state = compiled(params, gradients, state)
        return jax.block_until_ready(params)[-1]

    return step
