"""`gluongraph bench`: workloads fit, twins are twins, contenders answer. What is measured is not tested."""

from __future__ import annotations

import importlib.util
import json
import math
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from gluongraph.bench import chart, own
from gluongraph.bench.interleaved_timing import Result, contest, cores, environment
from gluongraph.bench.report import Report, show
from gluongraph.bench.workloads import UPDATES, WORKLOADS, Workload, batches, find, resnet50_shapes, update_shapes
from gluongraph.cli import main

BENCHMARKS = pathlib.Path(__file__).parent.parent.parent / "benchmarks"
NETS = {w.model: w for w in WORKLOADS.values() if w.model != "update"}  # one workload of each model


# The same models, so small that a step takes milliseconds.
SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"features": 12, "hidden": (8, 6), "classes": 3},
    "lenet": {"pixels": 16, "channels": (3, 4), "hidden": 8, "classes": 3},
    "digits": {"pixels": 8, "channels": (3, 4), "hidden": 8, "classes": 3},
    "resnet20": {"pixels": 32, "widths": (4, 6), "blocks": 1, "classes": 3},
    "resnet50": {"pixels": 64, "widths": (4, 6), "blocks": (1, 2), "classes": 3},
    "mobilenet": {"pixels": 32, "first": 4, "plan": "6 8/2", "classes": 3},
    "gpt": {"layers": 2, "width": 8, "heads": 2, "length": 6, "vocabulary": 11},
    "bert": {"layers": 2, "width": 8, "heads": 2, "length": 6, "vocabulary": 11},
    "lstm": {"layers": 2, "width": 6, "length": 5, "vocabulary": 11},
    "dcgan": {"noise": 5, "widths": (6, 4), "colours": 3},
    "dlrm": {"tables": 3, "rows": 7, "width": 4, "dense": 5, "bottom": (6,), "top": (8, 6)},
}


def small(model: str) -> Workload:
    row = NETS[model]
    return Workload(row.name, model, 4, SMALL[model], row.optimizer, row.hyper, row.loss)


def test_update_has_the_shapes_of_resnet50() -> None:
    shapes = resnet50_shapes()
    assert len(shapes) == 161 and sum(math.prod(s) for s in shapes) == 25_557_032


def test_updates_have_the_size_that_is_asked_for() -> None:
    for name, row in UPDATES.items():
        for size, wanted in (("25e6", 25_557_032), ("200e6", 8 * 25_557_032), ("160x64", 160 * 64)):
            workload = find(f"update/{name}/{size}")
            shapes = update_shapes(workload)
            assert sum(map(math.prod, shapes)) == wanted and workload.optimizer == row.optimizer
            assert name != "groupadagrad" or {len(shape) for shape in shapes} == {2}


def test_a_resnet50_of_its_own_size_has_its_parameters() -> None:
    """The bottlenecks are those of ResNet-50: its shapes but for the stem (3x3 here) and the classes."""
    net = own.network(NETS["resnet50"])
    shapes = [p.shape for p in net.collect_params().values() if p.grad_req != "null"]
    assert shapes[1:-2] == resnet50_shapes()[1:-2]


@pytest.mark.parametrize("model", SMALL)
def test_twins_have_the_same_loss(model: str) -> None:
    """With gluongraph's weights PyTorch's net has as many parameters, in the same order, and the same loss."""
    torch = pytest.importorskip("torch")
    from gluongraph import autograd
    from gluongraph.bench import torch_peer

    workload = small(model)
    net, twin = own.network(workload), torch_peer.network(workload)
    (batch,) = batches(workload, 1)
    *inputs, labels = own.arrays(batch)
    with autograd.train_mode():
        loss = float(own.LOSSES[workload.loss]()(net(*inputs), labels).mean())
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    theirs = list(twin.parameters())
    assert [tuple(p.shape) for p in theirs] == [p.shape for p in trained]
    with torch.no_grad():
        for p, mine in zip(theirs, trained, strict=True):
            p.copy_(torch.from_numpy(mine.data().asnumpy().copy()))
        *inputs, labels = torch_peer.tensors(batch)
        other = float(torch_peer.LOSSES[workload.loss](twin(*inputs), labels))
    assert loss == pytest.approx(other, rel=1e-5)


def test_jax_has_as_many_parameters() -> None:
    pytest.importorskip("jax")
    program = (
        "import json, jax\n"
        "from gluongraph.bench import jax_nets\n"
        f"small = json.loads({json.dumps(SMALL)!r})\n"
        "def count(model, size):\n"
        "    size = {k: tuple(v) if isinstance(v, list) else v for k, v in size.items()}\n"
        "    made = jax.eval_shape(lambda: jax_nets.MODELS[model](jax_nets.Maker(), **size)[0])\n"  # no numbers
        "    return sum(x.size for x in jax.tree.leaves(made))\n"
        "print(json.dumps({m: count(m, s) for m, s in small.items()}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment(1))
    assert not done.returncode, done.stderr
    counts = json.loads(done.stdout)
    for model in SMALL:
        trained = [p for p in own.network(small(model)).collect_params().values() if p.grad_req != "null"]
        assert counts[model] == sum(math.prod(p.shape) for p in trained), model


def test_all_workloads_have_twins() -> None:
    assert {w.model for w in WORKLOADS.values()} == {*own.MODELS, "update"}
    for module in ("torch_nets", "jax_nets"):
        text = (pathlib.Path(own.__file__).parent / f"{module}.py").read_text()
        assert all(f'"{model}": ' in text for model in own.MODELS)


def test_a_contest() -> None:
    results = contest(("gluongraph-eager", "jax"), "mlp-8", cores(1), blocks=2, block_seconds=0.01)
    mine, jax = results["gluongraph-eager"], results["jax"]
    assert len(mine.blocks) == 2 and mine.median > 0 and math.isfinite(mine.loss) and not mine.missing
    assert jax.blocks or "not installed" in jax.missing


@pytest.mark.parametrize(("target", "seen"), [("x86-64-v3", "AVX2"), ("x86-64-v4", "AVX512")])
def test_peers_are_held_to_a_target(target: str, seen: str) -> None:
    """By a variable that PyTorch obeys, where this machine has more."""
    torch = pytest.importorskip("torch")
    if seen not in ("AVX2", torch.backends.cpu.get_cpu_capability()):
        pytest.skip(f"PyTorch has no {seen} here")
    program = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    told = environment(1, target)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=told)
    assert done.stdout.strip() == seen and told["GG_TARGET"] == target


def test_peers_run_without_gluongraph() -> None:
    """In the process of a peer the name is an empty package: none of gluongraph's settings reach it."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import worker; worker.stand_in('gluongraph');"
        "from gluongraph.bench.workloads import find; "
        "print(find('mlp-8').batch, 'gluongraph.host.process' in sys.modules)"
    )
    folder = str(pathlib.Path(own.__file__).parent)
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["8", "False"]


def test_a_failing_contender_says_why() -> None:
    (result,) = contest(("gluongraph",), "no-such-workload", cores(1), 1, 0.01).values()
    assert "no-such-workload" in result.missing and not result.blocks


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """All of it on one small net: table, kernels with their roofline, JSON, chart."""
    picture = tmp_path / "a.svg"
    command = ["bench", "mlp-8", "--against", "", "--threads", "1", "--blocks", "1", "--block-seconds", "0.01"]
    assert main([*command, "--kernels", "--json", "--chart", str(picture)]) == 0
    found = json.loads(capsys.readouterr().out)
    mine = found["workloads"]["mlp-8"]
    assert found["threads"] == 1 and mine["contenders"]["gluongraph"]["median"] > 0 and mine["share"] > 0
    rows = mine["kernels"]["rows"]
    assert sum(row["flops"] for row in rows) > 3 * 2 * 8 * 784 * 512 - 2 * 8 * 784 * 512  # no gradient for the batch
    assert all(row["seconds"] > 0 and row["bound"] > 0 and row["limit"] in ("memory", "compute") for row in rows)
    assert "svg" in picture.read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        ["no-such-workload"],
        ["mlp-8", "--threads", "100000"],
        ["mlp-8", "--block-seconds", "0"],
        ["mlp-8", "--chart", "a.gif"],
        ["mlp-8", "--chart", "/no/such/folder/a.svg"],
    ],
)
def test_what_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *wrong]) == 2
    assert capsys.readouterr().err.startswith("gluongraph bench: ")


def result(contender: str, *blocks: float, missing: str = "") -> Result:
    return Result(contender, missing, blocks=list(blocks), others=[0.0] * len(blocks))


def test_a_report_tells_medians_ratios_and_what_is_missing() -> None:
    report = Report([0], "gluongraph", "32", 3, 0.5)
    mine, jax = result("gluongraph", 1e-3, 3e-3, 2e-3), result("jax", missing="jax is not installed")
    rows = {"gluongraph": mine, "torch": result("torch", 4e-3, 4e-3, 4e-3), "jax": jax}
    report.add(WORKLOADS["mlp-8"], rows)
    report.add(WORKLOADS["gpt"], {"gluongraph": mine, "torch": result("torch", 1e-3)})
    assert report.ratios() == {"mlp-8": {"torch": 2.0}, "gpt": {"torch": 0.5}}
    assert report.means() == {"torch": pytest.approx(1.0), "best peer": pytest.approx(1.0)}
    text = show(report, "mlp-8")
    assert "jax is not installed" in text and "2.00" in text and "2 ms" in text
    assert "geometric mean" in report.summary() and not report.failed
    assert report.data()["workloads"]["gpt"]["ratios"] == {"torch": 0.5}


def test_a_report_tells_the_share_of_the_roofline() -> None:
    report, mine = Report([0], "gluongraph", "32", 3, 0.5), result("gluongraph", 2e-3)
    mine.bound = 5e-4
    report.add(WORKLOADS["mlp-8"], {r.contender: r for r in (mine, result("torch", 4e-3))})
    assert report.ratios() == {"mlp-8": {"torch": 2.0}} and report.means()["best peer"] == pytest.approx(2.0)
    summary = report.summary()
    assert "2.00" in summary and "25%" in summary and report.data()["workloads"]["mlp-8"]["share"] == 0.25


def test_a_chart_has_a_bar_for_each_peer() -> None:
    text = chart.svg({"mlp-8": {"torch": 2.0, "jax": 1.5}, "a<b": {"jax": 0.5}})
    assert text.count("<rect") == 2 + 3 and "a&lt;b" in text and "2.00" in text
    assert np.isclose(
        float(text.split('width="')[4].split('"')[0]) / float(text.split('width="')[5].split('"')[0]), 4 / 3
    )


COMMANDS = sorted(
    f.name for f in BENCHMARKS.glob("*.py") if "argparse" in f.read_text() or "gluongraph.cli" in f.read_text()
)


@pytest.mark.parametrize("script", COMMANDS)
def test_benchmarks_explain_themselves(script: str) -> None:
    done = subprocess.run([sys.executable, BENCHMARKS / script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr


def test_peers_are_optional() -> None:
    """Nothing of gluongraph but the peers' own files mentions them."""
    assert importlib.util.find_spec("gluongraph.bench.torch_peer") is not None
    program = "import sys, gluongraph.cli.bench; print({'torch', 'jax', 'mxnet', 'tvm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
