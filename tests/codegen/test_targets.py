"""One program for every CPU target: equal results where this machine runs it, right machine code where it does not."""

from __future__ import annotations

import platform
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bare
import numpy as np
import pytest
import tvm
from processors import FOLDER, PROCESSORS

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.codegen import targets
from gluongraph.codegen.build import ENTRY, entry, kernel
from gluongraph.codegen.rule import Target
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.codegen.tvm import machine_code
from gluongraph.compiler.pipeline import plan_of
from gluongraph.errors import CompileError
from gluongraph.ir import interpreter
from gluongraph.ir.plan import Plan
from gluongraph.step import TrainStep

LOSS = gluon.loss.SoftmaxCrossEntropyLoss()
RNG = np.random.RandomState(0)
IMAGES = RNG.rand(8, 1, 12, 12).astype(np.float32)
LABELS = RNG.randint(0, 10, 8).astype(np.int32)
STEPS = 3
MACHINES = {"x86-64": 62, "x86-64-v3": 62, "x86-64-v4": 62, "aarch64": 183}  # e_machine of ELF files


def cnn() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(5, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2, 2),
        gluon.nn.Conv2D(7, 3),
        gluon.nn.BatchNorm(),
        gluon.nn.Activation("relu"),
        gluon.nn.Flatten(),
        gluon.nn.Dense(10),
    )
    return net


def mlp() -> gluon.HybridBlock:
    net = gluon.nn.HybridSequential(prefix="mlp_")  # the same names whenever it is made, so the same artefact
    with net.name_scope():
        net.add(gluon.nn.Flatten(), gluon.nn.Dense(33, activation="tanh"), gluon.nn.Dropout(0.2), gluon.nn.Dense(10))
    return net


Net = Callable[[], gluon.HybridBlock]
both = pytest.mark.parametrize("build", [cnn, mlp])


def trained(build: Net, on: str = "cpu") -> tuple[TrainStep, np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """The step, its losses, and the weights afterwards."""
    mx.random.seed(3)
    net = build()
    net.initialize(mx.init.Xavier())
    net(nd.array(IMAGES))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    step = mx.compile(net, LOSS, trainer, target=on)
    losses = np.stack([step(IMAGES, LABELS).asnumpy() for _ in range(STEPS)])
    assert losses[-1].mean() < losses[0].mean()
    return step, losses, [p.data().asnumpy() for p in net.collect_params().values()]


def assert_same(found: Any, expected: Any) -> None:
    """Losses and weights up to rounding."""
    np.testing.assert_allclose(found[1], expected[1], rtol=2e-4, atol=2e-5)
    for a, b in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def runs_here(row: Target) -> pytest.MarkDecorator:
    missing = [need for need in row.needs if need not in cpu_flags()]
    x86 = "sse2" in cpu_flags()
    return pytest.mark.skipif(bool(missing) or not x86, reason=f"this CPU does not run {row.name} code")


@both
@pytest.mark.parametrize("name", [pytest.param(n, marks=runs_here(TARGETS[n])) for n in ("x86-64", "x86-64-v3")])
def test_smaller_vectors_compute_the_same(build: Net, name: str) -> None:
    expected = trained(build)
    assert_same(trained(build, name), expected)


@pytest.mark.parametrize("name", [pytest.param(n, marks=runs_here(TARGETS[n])) for n in ("x86-64", "x86-64-v3")])
def test_smaller_vectors_draw_the_same(name: str) -> None:
    found = []
    for on in ("cpu", name):
        mx.random.seed(5)
        found.append(mx.compile(lambda: nd.random.normal(shape=(5, 41)), target=on).predict().asnumpy())
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=4e-6)


@pytest.mark.skipif("avx2" not in cpu_flags(), reason="this CPU does not run x86-64-v3 code")
def test_the_environment_names_the_default_target(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(mlp, "x86-64-v3")
    monkeypatch.setenv("GG_TARGET", "x86-64-v3")
    assert target() is TARGETS["x86-64-v3"]
    found = trained(mlp)
    assert found[0].artefact.path == expected[0].artefact.path, "the very same artefact"
    assert np.array_equal(found[1], expected[1])


@pytest.mark.parametrize(("threads", "pieces"), [(1, 8), (2, 8), (3, 9), (6, 12), (8, 8), (12, 12), (64, 64)])
def test_threads_have_as_many_pieces_each(monkeypatch: pytest.MonkeyPatch, threads: int, pieces: int) -> None:
    monkeypatch.setattr("gluongraph.codegen.targets.threads", lambda: threads)
    assert target("cpu").chunks == pieces and target("x86-64-v3").chunks == 8


@pytest.mark.parametrize("processor", PROCESSORS)
def test_the_target_of_each_processor(processor: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorded = PROCESSORS[processor]
    told_to_be(monkeypatch, recorded.machine, recorded.file)
    assert target().name == recorded.target and targets.runs_here(target())
    for row in TARGETS.values():  # what is recorded is enough for the rows that it runs, and one feature less is not
        lacking = set(row.needs).difference(recorded.features)
        assert targets.runs_here(row) == (not row.gpu and row.machine == platform.machine() and not lacking)
    for need in TARGETS[recorded.target].needs:
        less = tmp_path / need
        less.write_text("flags\t: " + " ".join(flag for flag in recorded.features if flag != need))
        told_to_be(monkeypatch, recorded.machine, less)
        assert target().name != recorded.target and need not in target().needs


def test_every_recorded_processor_has_its_target() -> None:
    assert set(FOLDER.iterdir()) == {processor.file for processor in PROCESSORS.values()}
    assert {processor.target for processor in PROCESSORS.values()} == TARGETS.keys() - {"cuda"}
    for file in FOLDER.iterdir():
        assert re.match(r"# (\S+/\S+( #\d+)?, |recorded for this project )", file.read_text()), "where it is from"


LINUX_NAMES = {"bmi": "bmi1", "crc32": "sse4_2", "lzcnt": "abm", "prfchw": "3dnowprefetch", "sse3": "pni"}
# What AVX cannot be without, what is for systems, tuning, and what LLVM uses only where a program names it.
NOT_USED = """
    64bit 64bit-mode avx cmov crc32 cx16 cx8 fxsr mmx nopl sahf sse sse2 sse3 sse4.1 sse4.2 ssse3 x87 xsave
    clflushopt cldemote clwb enqcmd fsgsbase invpcid pconfig pku ptwrite rdpid rdrnd rdseed serialize shstk tsxldtrk
    uintr waitpkg wbnoinvd xsavec xsaveopt xsaves movdir64b movdiri adx aes amx-int8 pclmul sha vaes vpclmulqdq
    allow-light-256-bit ermsb fsrm idivq-to-divl macrofusion prefer-256-bit vzeroupper
"""
TUNING = re.compile("false-deps-|fast-|slow-|no-bypass-delay-|tuning-")


@pytest.mark.parametrize("name", [name for name, row in TARGETS.items() if row and row.machine == "x86_64"])
def test_what_the_compiler_takes_for_granted(name: str) -> None:
    """A processor that lacks any of it does not get the row: its code would end in an illegal instruction."""
    features = tvm.target.codegen.llvm_get_cpu_features(machine_code.make_target(TARGETS[name].tvm))
    used = {str(f) for f in features if f not in NOT_USED.split() and not TUNING.match(str(f))}
    linux = set(TARGETS[name].needs) | {need.replace("_", "") for need in TARGETS[name].needs}
    missing = {f for f in used if LINUX_NAMES.get(f, f.replace("-", "").replace(".", "_")) not in linux}
    assert not missing


def test_tiles_that_linux_keeps_from_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags of a virtual machine may name them all the same."""
    recorded = PROCESSORS["sapphire_rapids_amx_guest"]
    told_to_be(monkeypatch, recorded.machine, recorded.file, tiles=False)
    assert target().name == "x86-64-v4"


def test_a_processor_of_no_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told_to_be(monkeypatch, "riscv64", tmp_path / "none")
    assert (target().name, target().tvm) == ("riscv64", {"kind": "llvm"})


def told_to_be(monkeypatch: pytest.MonkeyPatch, machine: str, cpuinfo: Path, tiles: bool = True) -> None:
    """Let this be another machine, as Python and Linux tell it."""
    monkeypatch.delenv("GG_TARGET", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(targets, "CPUINFO", cpuinfo)
    monkeypatch.setattr(targets, "_tiles_granted", lambda: tiles)


def test_targets_that_are_not_there() -> None:
    with pytest.raises(CompileError, match=r"unknown target 'vax'; there are cpu, .*x86-64-v3.*aarch64"):
        mx.compile(mlp(), target="vax")


def compiled(step: TrainStep, on: Target) -> tuple[Plan, Any]:
    """The plan and the machine code of a step's graph for a target, the code as TVM's module."""
    made = step._specializations.last.compiled
    plan, _ = plan_of(made.traced, made.request.roles, on)
    functions = [kernel(launch, on) for launch in plan.kernels.values()]
    return plan, machine_code.link(functions, {ENTRY: entry(plan, gpu=False)}, on.tvm)


@pytest.fixture(scope="module")
def steps() -> dict[str, TrainStep]:
    """A step of each net, whose graphs are compiled for other targets."""
    return {"cnn": trained(cnn)[0], "mlp": trained(mlp)[0]}


@pytest.mark.parametrize("net", ["cnn", "mlp"])
@pytest.mark.parametrize("name", MACHINES)
def test_object_code(steps: dict[str, TrainStep], tmp_path: Path, net: str, name: str) -> None:
    """Code is made for machines that are not this one, in the registers that these have."""
    _, code = compiled(steps[net], TARGETS[name])
    file = tmp_path / "step.o"
    code.write_to_file(str(file), "o")
    head = file.read_bytes()[:20]
    assert head[:6] == b"\x7fELF\x02\x01", "64 bits, little-endian"
    assert struct.unpack("<H", head[18:20]) == (MACHINES[name],)
    text = code.inspect_source("asm")
    widest = {"x86-64": "xmm", "x86-64-v3": "ymm", "x86-64-v4": "zmm", "aarch64": "v"}[name]
    used = set(re.findall(r"\b(?:[xyz]mm|v)(?=\d+\b)", text))
    assert widest in used
    assert not used.intersection({"xmm": {"ymm", "zmm"}, "ymm": {"zmm"}, "zmm": set(), "v": {"xmm"}}[widest])
    assert ("fmla" if name == "aarch64" else "vfmadd" if name != "x86-64" else "mulps") in text


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


NATIVE = pytest.param("x86-64", "cc", (), id="x86-64", marks=[needs("cc"), runs_here(TARGETS["x86-64"])])
EMULATED = pytest.param(
    "aarch64",
    "aarch64-linux-gnu-gcc",
    ("qemu-aarch64",),
    id="aarch64",
    marks=needs("aarch64-linux-gnu-gcc", "qemu-aarch64"),
)


@pytest.mark.parametrize("net", ["cnn", "mlp"])
@pytest.mark.parametrize(("name", "compiler", "emulator"), [NATIVE, EMULATED])
def test_code_runs_on_its_own(
    steps: dict[str, TrainStep], tmp_path: Path, net: str, name: str, compiler: str, emulator: tuple[str, ...]
) -> None:
    """A whole step in a C program without TVM, in an emulator if need be, against numpy."""
    variant = steps[net]._specializations.last
    graph, roles = variant.compiled.traced, variant.compiled.request.roles
    values: dict[str, Any] = {"data0": IMAGES, "data1": LABELS}
    values |= {key: array.storage.array for key, array in variant.state.items()}
    values |= {key: np.array(variant.runner.scalar(key)) for key, role in roles.items() if role == "scalar"}
    values = {key: values[key].reshape(n.shape) for key, n in graph.inputs.items()}
    plan, code = compiled(steps[net], TARGETS[name])
    found = bare.run(plan, code, values, compiler, emulator, tmp_path)
    outputs, updates = interpreter.run(graph, values)
    expected = {plan.outputs[key].name: v for key, v in outputs.items()} | updates
    assert set(updates) <= set(found)
    for key, want in expected.items():
        np.testing.assert_allclose(found[key].reshape(want.shape), want, rtol=2e-4, atol=2e-5, err_msg=key)


def test_without_a_c_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing can be linked: the code stays in memory, and the step trains all the same."""
    expected = trained(mlp)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GG_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    found = trained(mlp)
    assert found[0].artefact.path is None and found[0].artefact.module is not None
    assert_same(found, expected)
    assert not list((tmp_path / "cache").glob("**/step.so"))
