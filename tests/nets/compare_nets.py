"""A drawn network compiled against the same in eager mode.

* In float64 the gradients are equal to 1e-9 of the largest.
* In float32 each gradient is as near to that of float64 as rounding allows. What it allows is found by running the
  graph in float64 with every result of every op changed by a rounding error of float32. Where rounding decides on which
  side of a kink an element lies (a relu, a maximum, a clipped value, an adaptive optimizer's sign of a gradient that is
  0 but for rounding), the deviation is larger than that: the network is `parted` if such changes, made somewhat larger,
  move the result as far, and else wrong.
* One update from equal gradients is that of the optimizer in eager mode; of a whole step, gradients and update in one
  program, the new weights are judged as gradients are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from random_nets import Drawn

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node
from gluongraph.passes.inline import inline

Arrays = dict[str, np.ndarray[Any, Any]]
EXACT, LEAST = 1e-9, 1e-4  # of the largest gradient, in float64; where all are 0 but for rounding, of this in float32
LEAST_EXACT = 1e-2  # and of this in float64: a norm of equal numbers makes its rounding 316 times as large
UNITS = {"float32": 2.0**-24, "bf16-mixed": 2.0**-9}
SAMPLES = 3  # runs with rounding errors
ALLOWED = 32  # times what they deviate: sums have more terms than errors, functions more than one
# Rounding errors that many times larger may explain a larger deviation by a kink: if they move a result by as much
# (`REACH` times less), and by far more (`JUMP`) than in proportion.
LARGER, REACH, JUMP = (4.0, 16.0, 64.0, 256.0), 4, 8
# Ops whose results are elements of their operands, or those with another sign: they round nothing. With errors of their
# own the largest element of a window would be none of the window's, and no gradient would find its way back.
EXACT_OPS = {
    *(
        "reshape",
        "transpose",
        "expand",
        "slice",
        "concat",
        "pad",
        "flip",
        "depth_windows",
        "take",
        "gather",
        "first_of",
    ),
    *(
        "first_of",
        "put_rows",
        "max_pool2d",
        "max",
        "min",
        "neg",
        "sign",
        "abs",
        "relu",
        "stop_gradient",
        "maximum",
        "minimum",
    ),
    *("where", "output", "get_tuple_element"),
}
BY_NORMS = ("lars", "lamb")  # optimizers whose step is another one where a norm is 0
UPDATE = 1e-5  # of the largest weight, and ten times as much of the largest change


class WrongError(AssertionError):
    """Compiled and eager differ by more than rounding."""


@dataclass
class Found:
    """What came of a network: how far gradients were off, in what was allowed, and what rounding parted."""

    worst: float = 0.0
    parted: str = ""


def held(drawn: Drawn) -> Found:
    """Compare everything.

    Raises:
        WrongError: something differs.
    """
    found = Found()
    start = weights(drawn)
    _double(drawn, start)
    if drawn.mixed:
        _judge(drawn, start, found, "grads", "bf16-mixed")
    elif drawn.fused:
        _judge(drawn, start, found, "step", "float32")
    else:
        _judge(drawn, start, found, "accumulate", "float32")
    return found


# -- weights and batches


def weights(drawn: Drawn) -> Arrays:
    """Copies of all parameters."""
    return {name: p.data().asnumpy().astype("float64") for name, p in drawn.net.collect_params().items()}


def _set(drawn: Drawn, values: Mapping[str, Any], dtype: str) -> None:
    """Parameters of these values, in that precision."""
    drawn.net.cast(dtype)
    for name, p in drawn.net.collect_params().items():
        p.set_data(nd.array(values[name], dtype=dtype))
    mx.random.seed(drawn.seed)


def _batch(drawn: Drawn, dtype: str) -> tuple[Any, Any]:
    return nd.array(drawn.x, dtype=dtype), nd.array(drawn.label, dtype=dtype)


def _trainer(drawn: Drawn) -> gluon.Trainer:
    return gluon.Trainer(drawn.net.collect_params(), drawn.optimizer, dict(drawn.settings))


def _compiled(drawn: Drawn, **options: Any) -> Any:
    """The step; one of three computes again what it can."""
    return mx.compile(
        drawn.net, drawn.loss, _trainer(drawn), remat="blocks" if drawn.seed % 3 == 2 else None, **options
    )


def _names(drawn: Drawn) -> dict[str, str]:
    """Names of trained parameters, as gradients have them -> as `weights` has them."""
    return {p.name: name for name, p in drawn.net.collect_params().items() if p.grad_req != "null"}


# -- float64


def _double(drawn: Drawn, start: Arrays) -> None:
    _set(drawn, start, "float64")
    x, label = _batch(drawn, "float64")
    with autograd.record():
        loss = drawn.loss(drawn.net(x), label)
    loss.backward()
    eager = {p.name: p.grad().asnumpy() for p in drawn.net.collect_params().values() if p.grad_req != "null"}
    _set(drawn, start, "float64")
    step = _compiled(drawn)
    compiled = {name: g.asnumpy() for name, g in step.grads(x, label).items()}
    largest = max(float(np.abs(g).max()) for g in eager.values())
    for name, g in compiled.items():
        off = float(np.abs(g - eager[name]).max())
        if not off <= EXACT * max(largest, LEAST_EXACT):
            raise WrongError(f"{drawn}\nfloat64 gradient of {name}: off by {off:.3g}, the largest is {largest:.3g}")


# -- float32 and less


def _judge(drawn: Drawn, start: Arrays, found: Found, mode: str, precision: str) -> None:
    """Compiled results in a precision against those of the same graph in float64."""
    dtype, names = "float32", _names(drawn)
    _set(drawn, start, dtype)
    rounded = weights(drawn)  # what float32 holds of them: where float64 starts, too
    step = _compiled(drawn, precision="32" if precision == "float32" else precision)
    x, label = _batch(drawn, dtype)
    if mode == "grads":
        made = {name: g.asnumpy() for name, g in step.grads(x, label).items()}
    elif mode == "accumulate":
        step.accumulate(x, label)
        made = {name: g.asnumpy() for name, g in step.accumulator.sums.items()}
    else:
        step(x, label)
        made = {name: p.data().asnumpy() for name, p in drawn.net.collect_params().items()}
        made = {name: made[full] for name, full in names.items()}
    if mode == "accumulate":
        _update(drawn, rounded, step, made)
    _compare(
        drawn, found, rounded, made, *_exact(drawn, rounded, "step" if mode == "step" else "grads"), UNITS[precision]
    )


def _exact(drawn: Drawn, start: Arrays, mode: str) -> tuple[Graph, Arrays, Callable[[Arrays, Arrays], Arrays]]:
    """The graph in float64 and its inputs; what of its outputs and updates is compared."""
    _set(drawn, start, "float64")
    x, label = (nd.array(a.asnumpy(), dtype="float64") for a in _batch(drawn, "float32"))
    with debug.override(backend="reference"):
        trainer = _trainer(drawn)
        step = mx.compile(drawn.net, drawn.loss, trainer)
        step._specializations.prepare(trainer, (x, label))
        variant, _ = step._specializations.find(mode, (x, label))
        before = {name: np.array(array) for name, array in variant.held().items()}
        if mode == "step":
            step(x, label)
        else:
            step.grads(x, label)
    # The call has changed weights, states and running statistics; scalars and random numbers were there for it only.
    words = {name: np.array(array) for name, array in variant.held().items() if name not in variant.state}
    inputs = before | words | {"data0": x.asnumpy(), "data1": label.asnumpy()}
    names = set(_names(drawn))

    def wanted(outputs: Arrays, updates: Arrays) -> Arrays:
        if mode == "step":
            return {name: updates[name] for name in names if name in updates}
        return {name.removeprefix("grad:"): g for name, g in outputs.items() if name.startswith("grad:")}

    return inline(step.graph), {name: inputs[name] for name in step.graph.inputs}, wanted


def _compare(
    drawn: Drawn,
    found: Found,
    start: Arrays,
    made: Arrays,
    graph: Graph,
    inputs: Arrays,
    wanted: Callable[[Arrays, Arrays], Arrays],
    unit: float,
) -> None:
    exact = wanted(*interpreter.run(graph, inputs))
    near = [wanted(*_with_errors(graph, inputs, unit, i)) for i in range(SAMPLES)]
    least = unit * max(LEAST, *(float(np.abs(true).max()) for true in exact.values()))  # gradients may be 0
    for name, true in exact.items():
        off, size = float(np.abs(made[name] - true).max()), float(np.abs(true).max())
        moved = _moved(name, true, near)
        allowed = ALLOWED * (moved + unit * size) + least + 1e-30
        found.worst = max(found.worst, off / allowed)
        if off <= allowed:
            continue
        what = f"{name}: off by {off:.3g} of {size:.3g}, allowed is {allowed:.3g}"
        if drawn.optimizer in BY_NORMS and name in _zero_gradients(drawn, start):
            found.parted = f"{what}; its gradient is 0 but for rounding, and the optimizer divides by norms"
            continue
        for times in LARGER:
            far = (wanted(*_with_errors(graph, inputs, times * unit, i)) for i in range(4 * SAMPLES))
            jump = _moved(name, true, far)
            if off <= REACH * jump and jump > JUMP * times * (moved + unit * size):
                found.parted = f"{what}; errors {times:.0f} times as large move it by {jump:.3g}"
                break
        else:
            raise WrongError(f"{drawn}\n{what}")


def _zero_gradients(drawn: Drawn, start: Arrays) -> set[str]:
    """The parameters whose gradients are 0 but for rounding, beside the largest of all."""
    graph, inputs, wanted = _exact(drawn, start, "grads")
    gradients = {name: float(np.abs(g).max()) for name, g in wanted(*interpreter.run(graph, inputs)).items()}
    return {name for name, g in gradients.items() if g <= UNITS["float32"] * max(gradients.values())}


def _moved(name: str, true: Any, runs: Iterable[Arrays]) -> float:
    """How far the furthest of some runs is off."""
    return max(float(np.abs(each[name] - true).max()) for each in runs)


def _with_errors(graph: Graph, inputs: Arrays, unit: float, seed: int) -> tuple[Arrays, Arrays]:
    """Run in float64, every result that is rounded changed by up to `unit` of itself; so is what comes in, where that
    is more than float32's own rounding."""
    rng = np.random.default_rng(seed)
    if unit > UNITS["bf16-mixed"] / 2:
        whole = {name for name, array in inputs.items() if np.array_equal(array, np.rint(array))}  # may be indices
        inputs = {name: x if name in whole else _changed(x, unit, rng) for name, x in inputs.items()}
    given = {id(array) for array in inputs.values()}

    def change(n: Node, value: Any) -> None:
        for each in value if isinstance(value, tuple) else (value,):
            own = isinstance(each, np.ndarray) and each.base is None and id(each) not in given
            if own and each.dtype == np.float64 and n.src and each.flags.writeable and n.op.name not in EXACT_OPS:
                each[...] = _changed(each, unit, rng)

    return interpreter.run(graph, inputs, change)


def _changed(array: Any, unit: float, rng: Any) -> Any:
    """Numbers that are up to `unit` of themselves away."""
    return array * (1 + unit * rng.uniform(-1, 1, array.shape)) if array.dtype == np.float64 else array


# -- one update


def _update(drawn: Drawn, start: Arrays, step: Any, gradients: Arrays) -> None:
    """The compiled update by the sums of a window, and the optimizer's on equal gradients."""
    size = step.accumulator.samples
    sums = {name: np.array(g) for name, g in gradients.items()}
    step.apply()
    compiled = weights(drawn)
    _set(drawn, start, "float32")
    trainer, params = _trainer(drawn), drawn.net.collect_params()
    for p in params.values():
        if p.name in sums:
            p.grad()[:] = nd.array(sums[p.name])
            p.data()._fresh_grad = True
    trainer.step(size, ignore_stale_grad=True)
    for full, p in params.items():
        if p.name not in sums:
            continue
        eager = p.data().asnumpy().astype("float64")
        off, change = np.abs(compiled[full] - eager).max(), np.abs(eager - start[full]).max()
        if not off <= UPDATE * np.abs(eager).max() + 10 * UPDATE * change:
            raise WrongError(f"{drawn}\nupdate of {p.name}: off by {off:.3g}, it changes by {change:.3g}")
