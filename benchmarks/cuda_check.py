"""What only a machine with a GPU can show: every op on CUDA against numpy, a training step's losses, kernel times.

python benchmarks/cuda_check.py [--ops exp matmul ...] [--steps 20]

Ends with status 1, and one line that says so, where there is no GPU; with status 2 where a result is wrong.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd, ops
from gluongraph.codegen.cuda import rules
from gluongraph.codegen.targets import target
from gluongraph.compiler.lower import lower
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError
from gluongraph.gluon import nn
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Op, TensorType
from gluongraph.runtime.device import Device

TOLERANCE = {2: 2e-2, 4: 2e-5, 8: 1e-11}  # of the largest element, by bytes of an element


def main(argv: Sequence[str] | None = None) -> int:
    """Run all checks; the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", default=[n for n, op in OPS.items() if op.samples is not None])
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(argv)
    if not Device().exists():
        print("no GPU here (or no driver that answers): nothing was checked", file=sys.stderr)
        return 1
    wrong = check_ops(options.ops) + check_step(options.steps)
    print(f"{wrong} results are wrong" if wrong else "all results are right")
    return 2 if wrong else 0


def check_ops(names: Sequence[str]) -> int:
    """Every sample of every op: one artefact an op. The number of samples that are not right."""
    wrong = 0
    for name in names:
        found = list(samples(OPS[name]))
        if not found:
            continue
        inputs = {k: n for g, _ in found for k, n in g.inputs.items()}
        graph = Graph(inputs, {k: n for g, _ in found for k, n in g.outputs.items()})
        given = {k: a for _, arrays in found for k, a in arrays.items()}
        try:
            compiled = lower(graph, dict.fromkeys(graph.inputs, "input"), on=target("cuda"))
            executor = compiled.executor({})
            results = executor([np.ascontiguousarray(given[n]) for n in executor.input_names])
        except (MXNetError, RuntimeError) as error:
            print(f"{name:24} FAILED {type(error).__name__}: {str(error).strip().splitlines()[0]}")
            wrong += 1
            continue
        got = dict(zip(executor.output_names, results, strict=True))
        want = interpreter.run(graph, given)[0]
        bad = [f"{k}: off by {off:.1e}" for k, w in want.items() if (off := error_of(got[k], w)) > limit(OPS[name], w)]
        wrong += len(bad)
        rules = ", ".join(dict.fromkeys(launch.candidate.described for launch in compiled.plan.launches))
        print(f"{name:24} {len(want) - len(bad)}/{len(want)} right  {rules}", *bad, sep="\n  " if bad else "  ")
    return wrong


def samples(op: Op) -> Iterator[tuple[Graph, dict[str, Any]]]:
    """Graphs of one op each, with what to feed; inputs and outputs are numbered through."""
    if op.samples is None or op.name in ("input", "literal", "get_tuple_element", "call", "fused"):
        return
    for number, (arrays, attrs) in enumerate(op.samples(np.random.default_rng(zlib.crc32(op.name.encode())))):
        given = {f"s{number}_{i}": np.asarray(a) for i, a in enumerate(arrays)}
        inputs = {name: ops.input(name, TensorType(a.shape, dtype_name(a.dtype))) for name, a in given.items()}
        made = op(*inputs.values(), **attrs)
        results = (
            [ops.get_tuple_element(made, index=i) for i in range(len(made.types))]
            if isinstance(made.type, tuple)
            else [made]
        )
        yield Graph(inputs, {f"r{number}_{j}": n for j, n in enumerate(results)}), given


def error_of(got: Any, want: Any) -> float:
    """The largest difference, by the largest element; infinite where one is NaN or infinite and the other is not."""
    w = np.asarray(want).astype("f8")
    g = np.asarray(got).reshape(w.shape).astype("f8")
    finite = np.isfinite(w)
    if not np.array_equal(finite, np.isfinite(g)) or not np.array_equal(w[~finite], g[~finite], equal_nan=True):
        return float("inf")
    scale = max(1.0, float(np.abs(w[finite]).max(initial=0)))
    return float(np.abs(g[finite] - w[finite]).max(initial=0)) / scale


def limit(op: Op, want: Any) -> float:
    """What counts as right."""
    dtype = np.asarray(want).dtype
    if dtype.kind not in "fV":
        return 0.0
    return TOLERANCE[4 if op.kind == "random" and dtype.itemsize > 4 else dtype.itemsize]  # made in f32, whatever it is


def check_step(steps: int) -> int:
    """The digits network trained on the CPU and on the GPU from the same start; kernel rules and times. 1 if apart."""
    losses = {}
    rng = np.random.default_rng(0)
    batches = [
        (rng.random((64, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 64).astype(np.int32)) for _ in range(steps)
    ]
    for where in ("cpu", "cuda"):
        mx.random.seed(0)
        net, loss = network(), gluon.loss.SoftmaxCrossEntropyLoss()
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
        step = mx.compile(net, loss, trainer, target=where)
        losses[where] = [float(step(nd.array(x), nd.array(y)).asnumpy().mean()) for x, y in batches]
    apart = float(np.abs(np.array(losses["cuda"]) / np.array(losses["cpu"]) - 1).max())
    print(f"\nlosses over {steps} steps: {losses['cpu'][0]:.4f} to {losses['cpu'][-1]:.4f}, at most {apart:.1e} apart")
    print(rules.table(step.plan, target("cuda")))
    for row in step.profile(*batches[0]):
        print(row)
    return int(not apart < 1e-4)


def network() -> nn.HybridSequential:
    """Convolutions, batch normalization, pooling, dense layers."""
    net = nn.HybridSequential()
    for channels in (32, 64):
        net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
    net.add(nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    return net


if __name__ == "__main__":
    sys.exit(main())
