"""The table of what was measured to be fastest, and the settings of rules that it names."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from kernels import spoiled

from gluongraph import ops
from gluongraph.codegen.build import kernel
from gluongraph.codegen.cache.measurements import Measurement, table
from gluongraph.codegen.cache.selections import key_of
from gluongraph.codegen.rules import offer, tuning_variants
from gluongraph.codegen.targets import TARGETS, target
from gluongraph.codegen.tvm import machine_code
from gluongraph.compiler.pipeline import plan_of
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, TensorType, node
from gluongraph.ir.plan import Buffer, Candidate, Group, Launch
from gluongraph.runtime import loader
from gluongraph.storage import Array

CPU = TARGETS["x86-64-v4"]


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """A cache for each test alone."""
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    yield tmp_path


def product(m: int, n: int, kk: int) -> Group:
    x, w = (ops.input(f"x{i}", TensorType(shape)) for i, shape in enumerate(((m, kk), (kk, n))))
    return Group(Graph({"x0": x, "x1": w}, {"y0": ops.matmul(x, w) + 1.0}), "gemm")


def some(group: Group) -> Measurement:
    candidate = offer(CPU)(group)
    assert candidate is not None
    return Measurement(tuning_variants(group, candidate, CPU)[0], 1e-6, 2e-6)


def test_what_was_found_is_chosen_here_and_nowhere_else(folder: pathlib.Path) -> None:
    group = product(64, 96, 80)
    found = some(group)
    usual = offer(CPU)(group)
    table(CPU).put({key_of(group): found})
    assert usual is not None and usual.setting == "" != found.candidate.setting
    assert offer(CPU).tuned(group) == found.candidate and offer(CPU)(group) == usual
    plan, _ = plan_of(group.body, {"x0": "input", "x1": "input"}, CPU)
    assert [launch.candidate for launch in plan.launches] == [found.candidate]
    other = TARGETS["x86-64-v3"]
    assert offer(other).tuned(group) == offer(other)(group)


def test_it_is_read_again_and_processes_add_to_it(folder: pathlib.Path) -> None:
    one, two = product(64, 96, 80), product(96, 64, 80)
    table(CPU).put({key_of(one): some(one)})
    (path,) = folder.glob("tuned-*.json")
    again = type(table(CPU))(path)
    again.put({key_of(two): some(two)})
    assert type(again)(path).get(key_of(one)) == some(one) and len(type(again)(path)) == 2
    assert not [file for file in folder.iterdir() if file.name.startswith("tmp")]


@pytest.mark.parametrize("harm", ["", "{", "[]", '{"format": "another"}', "edited"])
def test_a_file_that_is_not_as_it_was_written_is_left_out(folder: pathlib.Path, harm: str) -> None:
    group = product(64, 96, 80)
    table(CPU).put({key_of(group): some(group)})
    (path,) = folder.glob("tuned-*.json")
    if harm == "edited":
        digest, text = path.read_text().split("\n", 1)
        data = json.loads(text)
        next(iter(data["rows"].values()))["candidate"]["workspace"] += 64
        harm = f"{digest}\n{json.dumps(data, indent=1)}"
    path.write_text(harm)
    with pytest.warns(UserWarning, match=r"tuned-.*json was damaged and is removed: `gluongraph tune`"):
        assert len(type(table(CPU))(path)) == 0
    assert not path.exists() and len(type(table(CPU))(path)) == 0, "told once"


def test_the_table_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    group = product(64, 96, 80)
    table(CPU).put({key_of(group): some(group)})
    monkeypatch.setenv("GG_TUNED", "0")
    assert offer(CPU).tuned(group) == offer(CPU)(group)


def test_no_bit_of_a_product_depends_on_its_setting() -> None:
    """Pieces, tiles, blocks and packing alike: every third setting of a product with odd extents."""
    group, rng = product(70, 150, 65), np.random.default_rng(0)
    x, w = (rng.standard_normal(t.shape, np.float32) for t in group.inputs)
    names, results = run_all(group, [x, w], every=3)
    assert len(set(names)) == len(names) > 3
    np.testing.assert_allclose(results[0], x @ w + 1, rtol=1e-4, atol=1e-4)
    for name, result in zip(names, results, strict=True):
        assert result.tobytes() == results[0].tobytes(), name


@pytest.mark.skipif(not getattr(target(), "tiles", False), reason="this CPU has no unit for tiles")
def test_nor_in_tiles() -> None:
    x, w = (ops.input(f"x{i}", TensorType(shape, "bf16")) for i, shape in enumerate(((70, 40), (40, 150))))
    made = node(OPS["matmul"], (x, w), {"ta": False, "tb": False, "dtype": "f32"})
    group = Group(Graph({"x0": x, "x1": w}, {"y0": made}), "gemm")
    arrays = [np.random.default_rng(0).standard_normal(t.shape).astype(numpy_dtype("bf16")) for t in group.inputs]
    names, results = run_all(group, arrays, every=1)
    assert names == ["", "stripes of 1 blocks", "stripes of 2 blocks"]
    meant = arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)
    for name, result in zip(names, results, strict=True):
        np.testing.assert_allclose(result, meant, rtol=1e-4, atol=1e-4, err_msg=name)
        assert result.tobytes() == results[0].tobytes(), name


@pytest.mark.parametrize("op", ["conv2d", "conv2d_data_grad", "conv2d_weight_grad"])
def test_every_layout_of_a_convolution_computes_the_same(op: str) -> None:
    x, w, y = (2, 4, 6, 5), (6, 2, 3, 3), (2, 6, 6, 5)
    how = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 2}
    given, made = {"conv2d": ((x, w), y), "conv2d_data_grad": ((y, w), x), "conv2d_weight_grad": ((x, y), w)}[op]
    inputs = {f"x{i}": ops.input(f"x{i}", TensorType(shape)) for i, shape in enumerate(given)}
    shape = {} if op == "conv2d" else {"shape": made}
    body = Graph(inputs, {"y0": node(OPS[op], tuple(inputs.values()), how | shape)})
    arrays = [np.random.default_rng(i).standard_normal(shape, np.float32) for i, shape in enumerate(given)]
    names, results = run_all(Group(body, "conv"), arrays, every=1)
    assert len(set(names)) == len(names) > 2
    meant = next(iter(interpreter.run(body, dict(zip(inputs, arrays, strict=True)))[0].values()))
    for name, result in zip(names, results, strict=True):
        np.testing.assert_allclose(result, meant, rtol=1e-4, atol=1e-4, err_msg=name)


def run_all(group: Group, arrays: list[Array], every: int) -> tuple[list[str], list[Array]]:
    """What the rule makes of a group by itself, and by every so manieth of its settings."""
    on = target()
    usual = offer(on)(group)
    assert usual is not None
    candidates: list[Candidate] = [usual, *tuning_variants(group, usual, on)[::every]]
    reads = tuple(Buffer(f"x{i}", t, "input") for i, t in enumerate(group.inputs))
    first = Launch("k0", group, usual, reads, (Buffer("y0", group.outputs[0], "output"),))
    launches = [replace(first, kernel=f"k{i}", candidate=c) for i, c in enumerate(candidates)]
    module = machine_code.build_kernels([kernel(launch, on) for launch in launches], on.tvm)
    results = []
    for launch in launches:
        y = spoiled(group.outputs[0].shape, np.float32)
        space = [spoiled((launch.candidate.workspace,), np.uint8)] if launch.candidate.workspace else []
        module[launch.kernel](*map(loader.view, (*arrays, y, *space)))
        results.append(y)
    return [c.setting for c in candidates], results
