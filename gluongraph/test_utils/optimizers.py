"""One optimizer against another."""

from __future__ import annotations

import copy
from typing import Any

from gluongraph import random
from gluongraph.optimizer import Optimizer
from gluongraph.test_utils.compare import assert_almost_equal, compare_ndarray_tuple

Shape = tuple[int, ...]


def compare_optimizer(
    opt1: Optimizer,
    opt2: Optimizer,
    shape: Shape | list[Shape],
    dtype: Any,
    w_stype: str = "default",
    g_stype: str = "default",
    rtol: float = 1e-4,
    atol: float = 1e-5,
    compare_states: bool = True,
    ntensors: int = 1,
) -> None:
    """Raise AssertionError unless an update by both gives the same weights, and states unless told otherwise.

    Of a list of shapes, the second optimizer updates all weights in one call.

    Raises:
        NotImplementedError: another storage than "default".
    """
    if {w_stype, g_stype} != {"default"}:
        raise NotImplementedError(f"compare_optimizer: arrays of storage {w_stype!r}, {g_stype!r} do not exist")
    shapes = shape if isinstance(shape, list) else [shape]
    weights, grads = ([random.uniform(shape=s, dtype=dtype) for s in shapes] for _ in range(2))
    others, theirs = copy.deepcopy(weights), copy.deepcopy(grads)  # an update may write into its gradient
    states1 = [opt1.create_state_multi_precision(i, w) for i, w in enumerate(weights)]
    states2 = [opt2.create_state_multi_precision(i, w) for i, w in enumerate(others)]
    if compare_states:
        compare_ndarray_tuple(states1, states2)
    for i, (w, g, state) in enumerate(zip(weights, grads, states1, strict=True)):
        opt1.update_multi_precision(i, w, g, state)
    if isinstance(shape, list):
        together: Any = opt2
        together.update_multi_precision(list(range(len(others))), others, theirs, states2)
    else:
        opt2.update_multi_precision(0, others[0], theirs[0], states2[0])
    if compare_states:
        compare_ndarray_tuple(states1, states2, rtol, atol)
    for w1, w2 in zip(weights, others, strict=True):
        assert_almost_equal(w1, w2, rtol, atol)
