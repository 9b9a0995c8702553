"""Random networks, compiled against eager mode. `benchmarks/fuzz_nets.py` tries as many as one likes."""

from __future__ import annotations

import compare_nets
import numpy as np
import pytest
import random_nets

from gluongraph import ops
from gluongraph.ir.graph import OPS, TensorType

# A flip beside a dropout; layer norms under a global maximum; attentions of one head that are computed again.
ONCE_WRONG = (3349, 5283, 9456, 10019, 10055)
PARTED = 4  # networks of these that rounding may part: that is rare


@pytest.fixture(scope="module")
def parted() -> list[str]:
    return []


@pytest.mark.parametrize("seed", (*range(40), *ONCE_WRONG))
def test_compiled_is_eager(seed: int, parted: list[str]) -> None:
    found = compare_nets.held(random_nets.draw(seed))
    parted += [found.parted] if found.parted else []
    assert len(parted) <= PARTED, "\n".join(parted)


def test_a_number_gives_the_same_network_again() -> None:
    first, second = random_nets.draw(7), random_nets.draw(7)
    assert str(first) == str(second)
    mine, theirs = map(compare_nets.weights, (first, second))
    for a, b in zip(mine.values(), theirs.values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("seed", "match"), [(4, "float64 gradient")])
def test_a_wrong_gradient_is_found(seed: int, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One part in ten million too much."""
    drawn = random_nets.draw(seed)
    held = compare_nets.mx.compile

    def compiled(*args: object, **how: object) -> object:
        step = held(*args, **how)
        grads = step.grads
        step.grads = lambda *batch: {name: g * (1 + 1e-7) for name, g in grads(*batch).items()}
        return step

    monkeypatch.setattr(compare_nets.mx, "compile", compiled)
    with pytest.raises(compare_nets.WrongError, match=match):
        compare_nets.held(drawn)


def test_what_rounding_cannot_explain_is_wrong() -> None:
    """A deviation of 1e-4 is no rounding of a product in float32; at a kink one of 1 is."""
    x = ops.input("x", TensorType((3,), "f64"))
    inputs = {"x": np.array([1.0, 2.0, 3.0])}
    drawn = random_nets.draw(4)

    def judged(graph: compare_nets.Graph, off: float) -> compare_nets.Found:
        found = compare_nets.Found()
        true = compare_nets.interpreter.run(graph, inputs)[0]["y"]
        compare_nets._compare(
            drawn,
            found,
            {},
            {"y": true + off},
            graph,
            inputs,
            lambda outputs, _: outputs,
            compare_nets.UNITS["float32"],
        )
        return found

    smooth = compare_nets.Graph({"x": x}, {"y": x * x})
    assert judged(smooth, 1e-6).worst < 1
    with pytest.raises(compare_nets.WrongError, match="off by 0"):
        judged(smooth, 1e-4)
    kinked = compare_nets.Graph({"x": x}, {"y": OPS["sign"](x * x - x * x * (1 + 2.0**-20))})
    assert judged(kinked, 1.0).parted


def test_rounding_errors_find_their_way_back_through_a_pooling() -> None:
    """What picks an element rounds nothing: else a gradient would be 0 in every run with errors, and all be allowed."""
    x = ops.input("x", TensorType((1, 1, 2, 2), "f64"))
    inputs = {"x": np.arange(4.0).reshape(1, 1, 2, 2)}
    window: dict[str, object] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "ceil": False}
    square = x * x
    pooled = OPS["max_pool2d"](square, **window)
    graph = compare_nets.Graph({"x": x}, {"y": OPS["max_pool2d_grad"](square, pooled, pooled * pooled, **window) * x})
    exact, near = (run(graph, inputs)[0]["y"] for run in (compare_nets.interpreter.run, with_errors))
    assert exact[0, 0, 1, 1] == 243
    np.testing.assert_allclose(near, exact, rtol=1e-6)


def with_errors(graph: compare_nets.Graph, inputs: compare_nets.Arrays) -> tuple[compare_nets.Arrays, ...]:
    return compare_nets._with_errors(graph, inputs, compare_nets.UNITS["float32"], 0)
