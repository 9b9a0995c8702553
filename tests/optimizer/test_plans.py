"""How many kernels an update of many parameters takes, and that it reads and writes what the formula needs, no more."""

from __future__ import annotations

from typing import Any

import pytest
from variants import settings

from gluongraph import ops, optimizer
from gluongraph.codegen.targets import target
from gluongraph.compiler.pipeline import plan_of
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.plan import Plan
from gluongraph.tracing.optimizer_updates import GRAD, apply_updates

# Arrays as large as the weight that are read and written. Whatever needs a norm of the weight is two passes: what is
# summed is read, then all is read again; LANS needs the norm of the gradient before those of its directions: three.
WORDS: list[tuple[str, dict[str, Any], int, int]] = [
    ("sgd", {}, 2, 1),
    ("sgd", {"momentum": 0.9}, 3, 2),
    ("nag", {"momentum": 0.9}, 3, 2),
    ("signum", {}, 3, 2),
    ("dcasgd", {}, 3, 2),
    ("dcasgd", {"momentum": 0.9}, 4, 3),
    ("sgld", {}, 2, 1),
    ("adam", {}, 4, 3),
    ("adamw", {}, 4, 3),
    ("adabelief", {}, 4, 3),
    ("adamax", {}, 4, 3),
    ("nadam", {}, 4, 3),
    ("adagrad", {}, 3, 2),
    ("groupadagrad", {}, 2, 1),  # its state is one number a row
    ("rmsprop", {}, 3, 2),
    ("rmsprop", {"centered": True}, 5, 4),
    ("adadelta", {}, 4, 3),
    ("ftrl", {}, 4, 3),
    ("ftml", {}, 5, 4),
    ("lars", {"momentum": 0.9}, 2 + 3, 2),
    ("lbsgd", {"momentum": 0.9, "batch_scale": 2}, 4, 3),
    ("lbsgd", {"momentum": 0.9, "warmup_strategy": "lars"}, 2 + 3, 2),
    ("lamb", {}, 4 + 4, 3),
    ("lans", {}, 1 + 4 + 4, 3),
    ("torch.sgd", {}, 2, 1),
    ("torch.sgd", {"momentum": 0.9, "nesterov": True}, 3, 2),
    ("torch.adam", {}, 4, 3),
    ("torch.adam", {"amsgrad": True}, 5, 4),
    ("torch.adamw", {}, 4, 3),
    ("torch.nadam", {}, 4, 3),
    ("torch.radam", {}, 4, 3),
    ("torch.adamax", {}, 4, 3),
    ("torch.adagrad", {}, 3, 2),
    ("torch.adadelta", {}, 4, 3),
    ("torch.rmsprop", {}, 3, 2),
    ("torch.rmsprop", {"centered": True, "momentum": 0.9}, 5, 4),
    ("torch.asgd", {}, 3, 2),
    ("torch.rprop", {}, 4, 3),
    ("torch.lion", {}, 3, 2),
]
# Launches for a parameter, where one is not computed together with others: its state has a number, from which others
# follow (nadam, asgd), or a comparison is computed again by each that reads it (rprop).
NUMBERS = {"torch.nadam": 1.5, "torch.asgd": 2.5, "torch.rprop": 1}
PASSES = {"lars": 2, "lamb": 2, "lans": 3}  # over the gradient
SHAPES = [(300, 70), (64, 300), (60, 40)]


def update_plan(name: str, extra: dict[str, Any], shapes: list[tuple[int, ...]], dtype: str = "f32") -> Plan:
    """The plan of an update of such parameters from gradients that are there."""
    names = [f"p{i}" for i in range(len(shapes))]
    weights = {n: ops.input(n, TensorType(s, dtype)) for n, s in zip(names, shapes, strict=True)}
    grads = {GRAD + n: ops.input(GRAD + n, w.ty) for n, w in weights.items()}
    made = optimizer.create(name, **settings(name, 0.1), **extra)
    graph, _ = apply_updates(Graph({**weights, **grads}, grads), made, names)
    scalar = [n for n in graph.inputs if n.startswith("scalar:") or n == "rng"]
    return plan_of(graph, {n: "scalar" if n in scalar else "state" for n in graph.inputs}, target("cpu"))[0]


@pytest.mark.parametrize(("name", "extra", "reads", "writes"), WORDS)
def test_reads_and_writes(name: str, extra: dict[str, Any], reads: int, writes: int) -> None:
    plan = update_plan(name, extra, SHAPES)
    assert words(plan) == {"f32": (reads, writes)} and plan.scratch_bytes < 4096


@pytest.mark.parametrize(("name", "extra", "reads", "writes"), WORDS)
def test_master_weights_cost_the_rounded_weight_only(name: str, extra: dict[str, Any], reads: int, writes: int) -> None:
    """The master weight is read where else the weight is; the 16-bit one is written, and the gradient read."""
    passes = 2 if "warmup_strategy" in extra else PASSES.get(name, 1)
    plan = update_plan(name, {**extra, "multi_precision": True}, SHAPES, "bf16")
    assert words(plan) == {"f32": (reads - passes, writes), "bf16": (passes, 1)} and plan.scratch_bytes < 4096


def words(plan: Plan) -> dict[str, tuple[float, float]]:
    """(reads, writes) of each dtype, per parameter, of arrays that are as large as a weight."""
    total = sum(TensorType(s).size for s in SHAPES)
    found: dict[str, list[int]] = {}
    for launch in plan.launches:
        for way, buffers in enumerate((launch.reads, launch.writes)):
            for buffer in {b.name: b for b in buffers}.values():
                if buffer.type.size >= 2400:
                    found.setdefault(buffer.type.dtype, [0, 0])[way] += buffer.type.size
    return {dtype: (reads / total, writes / total) for dtype, (reads, writes) in found.items()}


@pytest.mark.parametrize(("name", "extra", "reads", "writes"), WORDS)
def test_many_small_parameters_take_few_kernels(name: str, extra: dict[str, Any], reads: int, writes: int) -> None:
    plan = update_plan(name, extra, [(16, 4)] * 160)
    if name != "sgld":  # the number of a draw is part of the code; else kernels of a kind are one, but for the last
        assert len(plan.kernels) <= 8
    if name == "groupadagrad":  # rows are reduced in a kernel of one parameter
        assert len(plan.launches) == 160
    elif name in NUMBERS:
        assert len(plan.launches) <= 160 * NUMBERS[name]
    else:
        assert len(plan.launches) <= 160 / 2 * PASSES.get(name, 2 if "warmup_strategy" in extra else 1)
