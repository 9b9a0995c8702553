"""`gluongraph compile`, `diff`, `replay` and `completion`."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from gluongraph import debug, ops
from gluongraph.cli import COMMANDS, main
from gluongraph.cli.view import parting
from gluongraph.cli.view.parting import Judge
from gluongraph.ir import printer, serialize
from gluongraph.ir.graph import OPS, Graph, TensorType


def told(capsys: pytest.CaptureFixture[str], code: int, *command: str) -> str:
    capsys.readouterr()
    assert main(list(command)) == code
    return capsys.readouterr().out


def test_compiled_code_is_found_by_the_next(
    work: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    command = ("compile", "model.onnx", "--batch-sizes", "2,3", "--json")
    first, second = (json.loads(told(capsys, 0, *command)) for _ in range(2))
    assert [row["rows"] for row in first] == [2, 3] and all(row["compiled"] == row["kernels"] for row in first)
    assert all(row["compiled"] == 0 and pathlib.Path(row["path"]).is_file() for row in second)
    assert told(capsys, 2, "compile", "model.onnx", "--modes", "step") == ""


def test_differences(work: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = told(capsys, 0, "diff", "train.py", "train.py:make_step")
    assert same.count("the same") >= 10 and "differ" not in same
    command = ("diff", "train.py:network", "--input", "16,8", "--loss", "l2", "--to-compile", "clip_norm=1.0")
    data = json.loads(told(capsys, 1, *command, "--json"))
    parts = [part["part"] for part in data["parts"]]
    assert (parts[0], parts[-1]) == ("traced", "launches")
    assert "sqrt" in data["parts"][0]["counts"] and all(mark in "+-" for mark, _ in data["parts"][0]["changes"])
    with debug.override(dump=str(tmp_path / "dump")):
        told(capsys, 0, "compile", "train.py")
    assert "launches: 9, the same" in told(capsys, 0, "diff", "train.py", str(tmp_path / "dump"))
    assert told(capsys, 2, "diff", "train.py") == ""


def test_artefacts(work: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It trains as the step that it was made from, and is made of the same graph and kernels."""
    artefact, losses = str(tmp_path / "step.gga"), []
    told(capsys, 0, "compile", "train.py:make_step", "-o", artefact, "--modes", "step")
    for name in ("train.py:make_step", artefact):
        run = ("--batch-size", "64", "--discard", "--no-shuffle", "--save", str(tmp_path / f"run{len(losses)}"))
        losses.append(json.loads(told(capsys, 0, "train", name, "data.npz", *run, "--json"))["epochs"])
    assert losses[0] == losses[1]
    assert "launches: 9, the same" in told(capsys, 0, "diff", "train.py:make_step", artefact)
    steps = json.loads(told(capsys, 0, "inspect", artefact, "--json", "--repeat", "1"))["steps"]
    assert len(steps) == 9 and all(step["seconds"] > 0 for step in steps)
    assert "result: 13 agree" in told(capsys, 0, "replay", artefact)
    for wrong in (("train", artefact, "data.npz", "-o", "x.onnx"), ("compile", "train.py", "-o", "x.bin")):
        told(capsys, 2, *wrong)


def test_written_graphs(work: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = ops.input("x", TensorType((4, 5)))
    graph = Graph({"x": x}, {"y": ops.tanh(x), "z": ops.sum(x, axis=(1,))})
    (tmp_path / "a.py").write_text(printer.show(graph))
    (tmp_path / "b.json").write_text(serialize.dumps(graph))
    assert "traced: 2, the same" in told(capsys, 0, "diff", str(tmp_path / "a.py"), str(tmp_path / "b.json"))
    assert "result: 2 agree" in told(capsys, 0, "replay", str(tmp_path / "a.py"))
    (tmp_path / "b.json").write_text("{")
    for command in (("diff", str(tmp_path / "a.py"), str(tmp_path / "b.json")), ("replay", str(tmp_path / "b.json"))):
        told(capsys, 2, *command)


TOKENS = """import gluongraph as mx
from gluongraph import gluon

def network():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Embedding(10, 4), gluon.nn.Dense(3))
    net.initialize()
    return net
"""


def test_indices_that_are_made_up_are_in_range(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Token ids and labels may be floats, as in most scripts of Gluon: only the graph tells that they are indices."""
    (tmp_path / "tokens.py").write_text(TOKENS)
    subject = (f"{tmp_path}/tokens.py:network", "--input", "8,6", "--input", "8", "--loss", "SoftmaxCrossEntropyLoss")
    assert "result: 10 agree" in told(capsys, 0, "replay", *subject)
    artefact, dump = str(tmp_path / "step.gga"), str(tmp_path / "dump")
    with debug.override(dump=dump):
        told(capsys, 0, "compile", *subject, "-o", artefact, "--modes", "step")
    for compiled in (artefact, dump):
        assert "result: 10 agree" in told(capsys, 0, "replay", compiled)


def test_a_case_holds_graph_and_numbers(
    work: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `replay -o` writes is replayed to the same errors; what is damaged is refused."""
    case = tmp_path / "case"
    first = told(capsys, 0, "replay", "train.py", "-o", str(case), "--json")
    assert {row["what"] for row in json.loads(first)} == {"pass", "kernel", "result"}
    assert told(capsys, 0, "replay", str(case), "--json") == first
    told(capsys, 2, "replay", "train.py", "-o", str(case))
    told(capsys, 2, "replay", str(case), "--precision", "32")
    told(capsys, 2, "diff", str(case), str(case), "--batch-size", "4")
    whole = (case / "inputs.safetensors").read_bytes()
    (case / "inputs.safetensors").write_bytes(whole[: len(whole) // 2])
    told(capsys, 2, "replay", str(case))


def test_a_kernel_that_is_wrong_is_found(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another meaning of one operator in numpy, the compiled kernels are what is wrong."""
    x = ops.input("x", TensorType((4, 5)))
    graph = Graph({"x": x}, {"y": ops.relu(x) * ops.sin(ops.exp(x) + x)})
    monkeypatch.setitem(OPS["sin"].__dict__, "numpy", lambda x: np.sin(x) + np.float32(0.1))
    values = {"x": np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)}
    found = parting.parting(graph, values, 1e-3)
    (kernel,) = (each for each in found if each.what == "kernel")
    assert kernel.parts and "<sin(add)" in kernel.told
    assert [each.parts for each in found if each.what == "result"] == [True]


def test_what_counts_as_an_error() -> None:
    judge = Judge(1e-3, {"quiet": 0.0, "noisy": 1.0})
    meant = np.array([1.0, np.nan, np.inf], np.float32)
    assert not judge("", "", "quiet", meant.copy(), meant).parts
    assert judge("", "", "quiet", np.array([1.01, np.nan, np.inf], np.float32), meant).parts
    assert judge("", "", "quiet", np.array([np.nan, np.nan, np.inf], np.float32), meant).error == np.inf
    noisy = judge("", "", "noisy", np.array([1.5], np.float32), np.array([1.0], np.float32))
    assert noisy.cancels and not noisy.parts


def test_bash_completes(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "gluongraph"
    script.write_text(told(capsys, 0, "completion", "bash"))

    def completed(*words: str) -> list[str]:
        line = f"COMP_WORDS=(gluongraph {' '.join(words)}); COMP_CWORD={len(words)}"
        program = f"source {script}; {line}; _gluongraph; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert completed("in") == ["inspect"] and set(completed("''")) == set(COMMANDS)
    assert completed("inspect", "--ht") == ["--html"]
    assert completed("inspect", "--by", "l") == ["lost"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_theirs(shell: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, 0, "completion", shell)
    assert (all(f"{name}" in text for name in COMMANDS) and "--html" in text) or "-l html" in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its completion was not read by it")
    (tmp_path / "script").write_text(text)
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
