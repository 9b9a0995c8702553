"""Mixed precision is not casts around float32: the operands and the sums of every product of the benchmarks' plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gluongraph import debug
from gluongraph.bench import own, workloads
from gluongraph.codegen.contraction import conv_tiles
from gluongraph.codegen.contraction.contraction import geometry_of
from gluongraph.codegen.targets import TARGETS
from gluongraph.ir.graph import Graph, Node
from gluongraph.ir.plan import Plan

LOW = {"bf16-mixed": "bf16", "16-mixed": "f16"}
# name of the workload -> products that a step of it must hold
MODELS = {
    "mlp-8": 3 + 3 + 2,  # forward, gradients of weights, of data but the first
    "lenet-128": 4 + 4 + 3,
    "digits-64": 4 + 4 + 3,
    "gpt-small": 2 * (4 + 2) * 3 + 3,
    "resnet18-32": 21 + 21 + 20,
}


def planned(name: str, precision: str) -> Plan:
    """The plan of a workload's step; nothing is compiled."""
    with debug.override(backend="reference"):
        step, batches = own.step_of(workloads.find(name), precision=precision)
        step.memory(*batches[0])
        plan: Plan = step.plan
    return plan


def products(plan: Plan) -> Iterator[tuple[Node, set[str]]]:
    """Each matrix product, convolution and attention, and the dtypes that its operands have in memory."""
    for launch in plan.launches:
        memory = dict(zip(launch.group.body.inputs.values(), launch.reads, strict=True))
        for n in contractions(launch.group.body):
            yield n, {memory[s].type.dtype if s in memory else s.dtype for s in n.src}


def contractions(body: Graph) -> Iterator[Node]:
    for n in body.nodes():
        if n.op.kind in ("contraction", "composite"):
            yield n
        for inner in (v for v in n.attrs.values() if isinstance(v, Graph)):
            yield from contractions(inner)


@pytest.mark.parametrize("precision", LOW)
@pytest.mark.parametrize("name", MODELS)
def test_all_products_of_the_benchmarks(name: str, precision: str) -> None:
    found = list(products(planned(name, precision)))
    whole = [n for n, _ in found if n.op.kind == "composite"]  # two products in one, and their four gradients
    assert len(found) - len(whole) + len(whole) // 2 * (2 + 4) == MODELS[name]
    for n, operands in found:
        assert operands == {LOW[precision]}, n.op.name
        assert n in whole or n.dtype == "f32"
    cpu = TARGETS["sapphirerapids"]
    assert cpu is not None
    if precision == "bf16-mixed" and name == "resnet18-32":
        layers = [geometry_of(n) for n, _ in found if n.op.name.startswith("conv")]
        left = [layer for layer in layers if not conv_tiles.is_profitable(layer, cpu, "bf16")]
        assert [layer.c for layer in left] == [3, 3]  # the first, and the gradient of its weights
