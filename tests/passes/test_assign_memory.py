"""schedule and memory: order, places, the peak; byte-equal whatever Python's hash seed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from models import Builder, Forward, lenet, mlp, planned, training_step, transformer

from gluongraph import ops
from gluongraph.ir.graph import Graph
from gluongraph.ir.printer import show_plan
from gluongraph.passes.assign_memory import lower_bound
from gluongraph.storage import ALIGNMENT

MODELS = {
    "mlp": mlp(),
    "mlp_deep": mlp(32, (64, 64, 64, 64, 64, 64, 10)),
    "lenet": lenet(8),
    "transformer": transformer(2, 16, 32),
}


@pytest.mark.parametrize("forward", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_scratch_is_within_ten_percent_of_the_lower_bound(forward: Forward, optimizer: str) -> None:
    plan = planned(training_step(forward, optimizer))
    assert lower_bound(plan) <= plan.scratch_bytes <= 1.10 * lower_bound(plan) + ALIGNMENT


def test_no_gradient_of_a_weight_is_ever_stored() -> None:
    """Where the update rides on the gradient's kernel, scratch holds activations only."""
    plan = planned(training_step(mlp(8, (784, 512, 256, 10)), "adam"))
    assert max(b.type.size for b in plan.buffers.values() if b.space == "scratch") == 8 * 512


def test_kept_gradients_are_outputs_not_scratch() -> None:
    plan = planned(training_step(mlp(8, (64, 32, 10)), "adam", keep_grads=True))
    assert all(b.space == "output" for b in plan.outputs.values())


def test_outputs_with_one_value_have_memory_of_their_own() -> None:
    b = Builder()
    x, w = b.data("x", (4, 3)), b.param(4, 3)
    y = ops.exp(ops.add(x, w))
    plan = planned(Graph(b.inputs, {"a": y, "b": y, "flat": ops.reshape(y, (12,))}, {"p0": y}))
    assert {name: (out.name, out.space, out.type.shape) for name, out in plan.outputs.items()} == {
        "a": ("a", "output", (4, 3)),
        "b": ("b", "output", (4, 3)),
        "flat": ("flat", "output", (12,)),
    }
    written = [w.name for launch in plan.launches for w in launch.writes]
    assert sorted(written) == ["a", "b", "flat", "p0"]


def test_states_are_updated_in_place() -> None:
    plan = planned(training_step(mlp(), "adam"))
    updating = [launch for launch in plan.launches if any(w.space == "state" for w in launch.writes)]
    assert len(updating) == 6
    for launch in updating:
        assert len(launch.group.inplace) == 3  # weight, mean, variance
        for output, source in launch.group.inplace:
            assert launch.writes[output].name == launch.reads[source].name


def test_equal_kernels_are_one() -> None:
    plan = planned(training_step(mlp(32, (64, 64, 64, 64, 64, 10)), "sgd"))
    assert len(plan.kernels) <= 11  # 4 equal hidden layers share forward, both gradients and the bias kernel


SHOW = """
import sys
sys.path.insert(0, {folder!r})
from models import *
from gluongraph.ir.printer import show_plan
for forward in (mlp(), transformer(), lenet()):
    print(show_plan(planned(training_step(forward, "adam"))))
"""


def test_plans_do_not_depend_on_the_hash_seed() -> None:
    code = SHOW.format(folder=str(pathlib.Path(__file__).parent))
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


def test_golden(golden: object) -> None:
    golden("plan", show_plan(planned(training_step(mlp(4, (6, 5, 3)), "sgd"))))
