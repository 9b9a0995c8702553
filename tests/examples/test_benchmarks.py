"""The benchmarks' machinery: workloads and their batches fit, contenders answer. What they measure is not tested."""

from __future__ import annotations

import importlib
import math
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest

BENCHMARKS = pathlib.Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("workloads")


def test_update_has_the_shapes_of_resnet50(benchmark: ModuleType) -> None:
    shapes = benchmark.resnet50_shapes()
    assert len(shapes) == 161 and sum(math.prod(s) for s in shapes) == 25_557_032


def test_updates_have_the_size_that_is_asked_for(benchmark: ModuleType) -> None:
    for name, row in benchmark.UPDATES.items():
        for size, wanted in (("25e6", 25_557_032), ("200e6", 8 * 25_557_032), ("160x64", 160 * 64)):
            workload = benchmark.find(f"update/{name}/{size}")
            shapes = benchmark.update_shapes(workload)
            assert sum(map(math.prod, shapes)) == wanted and workload.optimizer == row.optimizer
            assert name != "groupadagrad" or {len(shape) for shape in shapes} == {2}


@pytest.mark.parametrize("name", ["mlp-8", "lenet-128", "gpt-small"])
def test_networks_take_their_batches(benchmark: ModuleType, name: str) -> None:
    workload = benchmark.WORKLOADS[name]
    ((x, y),) = benchmark.batches(workload, 1)
    outputs = benchmark.network(workload)(benchmark.nd.array(x[:2], dtype=x.dtype))
    assert outputs.shape[0] == 2 and outputs.shape[:-1] == y[:2].shape


def test_a_contest(benchmark: ModuleType) -> None:
    contest = importlib.import_module("contest")
    results = contest.contest(("gluongraph-eager", "jax"), "mlp-8", contest.cores(1), blocks=2, block_seconds=0.01)
    own, jax = results["gluongraph-eager"], results["jax"]
    assert len(own.blocks) == 2 and own.median > 0 and math.isfinite(own.loss) and not own.missing
    assert jax.blocks or jax.missing == "jax is not installed"


def test_a_failing_contender_says_why(benchmark: ModuleType) -> None:
    contest = importlib.import_module("contest")
    (result,) = contest.contest(("gluongraph",), "no-such-workload", contest.cores(1), 1, 0.01).values()
    assert "no-such-workload" in result.missing and not result.blocks


COMMANDS = sorted(f.name for f in BENCHMARKS.glob("*.py") if "argparse" in f.read_text() or f.name == "eager.py")


@pytest.mark.parametrize("script", COMMANDS)
def test_commands_explain_themselves(script: str) -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / script, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr
