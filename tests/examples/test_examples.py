"""Each example, two steps of it."""

from __future__ import annotations

import importlib.util
import math
import pathlib
import re
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from lightning_scripts import run, with_both

import gluongraph as mx
from gluongraph import gluon

pytestmark = pytest.mark.usefixtures("demo_environment")
needs_exporter = pytest.mark.skipif(
    not (importlib.util.find_spec("torch") and importlib.util.find_spec("onnxscript")),
    reason="torch.onnx.export(dynamo=True) needs onnxscript",
)

ROOT = pathlib.Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_digits(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load("digits").main(["--steps", "2", *(["--eager"] if mode == "eager" else [])])
    assert 0 <= accuracy <= 1
    out = capsys.readouterr().out
    assert "test accuracy" in out and "compiled" in out and "eager" in out


def test_char_transformer(capsys: pytest.CaptureFixture[str]) -> None:
    loss, entropy = load("char_transformer").main(["--steps", "2", "--sample", "3"])
    assert 2 < entropy < math.log(96)
    assert loss == pytest.approx(math.log(96), rel=0.1)  # before it has learnt anything, all characters are alike
    assert "def " in capsys.readouterr().out


def test_deploy(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That the runner takes what it writes is in tests/runtime/native."""
    artefact = load("deploy").main(["--folder", str(tmp_path)])
    assert "batches of 64, 40, 29" in capsys.readouterr().out
    check_artefact(artefact)


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="PyTorch is not installed")
@pytest.mark.beside("torch", "torchgen", "functorch", "sympy", "mpmath", "jinja2", "markupsafe", "filelock", "fsspec")
def test_torch_module(capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load("torch_module").main(["--epochs", "2"])
    assert accuracy > 0.9
    assert "test accuracy of the module in PyTorch" in capsys.readouterr().out


def last_number(text: str, name: str) -> float:
    """The last number that is printed after a name."""
    return float(re.findall(rf"{name}[^\d\n-]*(-?[\d.]+)", text)[-1])


@with_both
def test_lightning_autoencoder(theirs: bool, tmp_path: pathlib.Path) -> None:
    out = run("lightning_autoencoder", tmp_path, theirs, "--epochs", "3")
    assert 0.03 < last_number(out, "error of a pixel") < 0.12
    assert len(list((tmp_path / "lightning_logs" / "version_0" / "checkpoints").glob("epoch=*-val_loss=0.*.ckpt"))) == 1


@with_both
def test_lightning_transfer(theirs: bool, tmp_path: pathlib.Path) -> None:
    out = run("lightning_transfer", tmp_path, theirs, "--epochs", "3")
    assert last_number(out, "digits 0 to 4, all weights:") > 90
    assert last_number(out, "frozen features:") > 60
    assert last_number(out, "all weights tuned:") > 60


@with_both
def test_lightning_gan(theirs: bool, tmp_path: pathlib.Path) -> None:
    out = run("lightning_gan", tmp_path, theirs, "--epochs", "2")
    assert 0.2 < last_number(out, "g_loss") < 3 and 0.2 < last_number(out, "d_loss") < 2


@with_both
def test_lightning_transformer(theirs: bool, tmp_path: pathlib.Path) -> None:
    out = run("lightning_transformer", tmp_path, theirs, "--steps", "40")
    assert 2 < last_number(out, "cross entropy of a letter") < math.log(96)


@with_both
def test_lightning_segmentation(theirs: bool, tmp_path: pathlib.Path) -> None:
    run("lightning_segmentation", tmp_path, theirs, "--epochs", "2")
    version = tmp_path / "segmentation" / "version_0"
    header = (version / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"epoch", "step", "lr-Adam", "train_loss_step", "train_loss_epoch", "val_iou_disc", "test_iou_square"} <= {
        *header
    }
    assert (version / "checkpoints" / "last.ckpt").exists()


@with_both
def test_lightning_digits(theirs: bool, tmp_path: pathlib.Path) -> None:
    out = run("lightning_digits", tmp_path, theirs, "--epochs", "2")
    assert last_number(out, "test accuracy") > 80 and "38 updates" in out
    assert sorted(path.name for path in (tmp_path / "digits").iterdir()) == ["version_0", "version_1"]


def test_lightning_gluon(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = load("lightning_gluon").main(["--epochs", "2", "--folder", str(tmp_path)])
    assert accuracy > 0.8 and "38 updates" in capsys.readouterr().out
    assert (tmp_path / "gluon" / "version_0" / "metrics.csv").exists()


@needs_exporter
def test_deploy_of_what_pytorch_exports(tmp_path: pathlib.Path) -> None:
    """In a process of its own, which sees all packages: PyTorch cannot be imported a second time."""
    subprocess.run([sys.executable, EXAMPLES / "deploy.py", "--folder", tmp_path], check=True, capture_output=True)
    assert b"PARAMETER" in (tmp_path / "model.onnx").read_bytes()
    check_artefact(tmp_path / "digits.gga")


def check_artefact(artefact: pathlib.Path) -> None:
    """It trains on the data beside it."""
    step, data = mx.load(artefact), [np.load(artefact.parent / f"train-{part}.npy") for part in "xy"]
    losses = [step(*(a[:64] for a in data)).mean().asscalar() for _ in range(2)]
    assert losses[1] < losses[0] < 3


PREPARED = "import torch\nnet = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"


@pytest.mark.parametrize("exporter", [pytest.param("torch", marks=needs_exporter), "helper"])
def test_deploy_as_its_page_tells_it(exporter: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, artefact, and back: in between the runner trains, and here the artefact in Python, to the same bits."""
    monkeypatch.chdir(tmp_path)
    model, artefact, back = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)
    draw = np.random.default_rng(0)
    x, y = draw.random((64, 1, 8, 8), np.float32), draw.integers(0, 10, 64).astype(np.int32)
    names: dict[str, Any] = {"mx": mx, "gluon": gluon, "x": x, "y": y}
    if exporter == "torch":
        subprocess.run([sys.executable, "-c", PREPARED + model], check=True, capture_output=True)
    else:
        load("deploy").write_with_helper(tmp_path / "model.onnx")
    exec(compile(artefact, "deploy.md", "exec"), names)
    there = mx.load("digits.gga")
    first = there(x, y).mean().asscalar()
    there.save("work/run")
    exec(compile(back, "deploy.md", "exec"), names)
    assert names["step"].trainer.optimizer.num_update == 2 and names["loss"].mean().asscalar() < first


@pytest.mark.parametrize("number", ["0", "-1", "many"])
@pytest.mark.parametrize(
    ("name", "option"),
    [("digits", "--epochs"), ("digits", "--steps"), ("char_transformer", "--steps"), ("char_transformer", "--sample")],
)
def test_numbers_that_count_nothing(name: str, option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load(name).main([option, number])
    assert f"argument {option}: '{number}' is no whole number from 1 on" in capsys.readouterr().err


def test_all_examples_are_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {file.stem for file in EXAMPLES.glob("*.py")} <= tested


def test_the_readmes_first_commands_are_the_demo_and_the_tests() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    first, second, *_ = [line for line in lines if line.startswith("    ")]
    assert first.split()[:2] == ["make", "demo"] and second.split()[:2] == ["make", "test"]
    assert lines.index(second) < 5


@pytest.mark.parametrize("page", ["README.md", "docs/debugging.md"])
def test_pages_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, page, "exec"), names)
    assert names["step"].trainer.optimizer.num_update > 0
    assert ("update" in capsys.readouterr().out) == ("print(show" in block)


@pytest.mark.parametrize("more", [(), ("--kv-store", "device")])
def test_distributed_digits(more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """On one process; tests/docs/test_distributed.py runs it on two."""
    accuracy = load("distributed_digits").main(["--epochs", "1", "--steps", "2", *more])
    assert 0 <= accuracy <= 1 and "test accuracy" in capsys.readouterr().out


@pytest.mark.beside("ray")
def test_ray_train(tmp_path: pathlib.Path) -> None:
    """Two workers on a local Ray, in a process of its own; where Ray is not installed, the sentence that says so."""
    line = [sys.executable, str(EXAMPLES / "ray_train.py"), "--epochs", "1", "--steps", "2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    if importlib.util.find_spec("ray") is None:
        assert done.returncode == 1 and "pip install ray" in done.stderr
        pytest.skip("not installed: ray")
    assert done.returncode == 0 and re.search(r"accuracy of each worker: [\d.]+%, [\d.]+%", done.stdout), done
