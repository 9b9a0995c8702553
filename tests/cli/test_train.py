"""`gluongraph train`: the same bits as a program of one's own, interrupted or not; what it refuses."""

from __future__ import annotations

import json
import pathlib
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest

from gluongraph import nd
from gluongraph.cli import main
from gluongraph.runtime import tensorfile

FUNCTION = ["train", "train.py:make_step", "data.npz", "--batch-size", "64"]  # the last batch has 32 rows


def parameters(file: pathlib.Path) -> dict[str, np.ndarray]:
    return tensorfile.parse(np.fromfile(file, np.uint8), str(file))


def test_it_goes_on_to_the_bit(work: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    straight, broken = tmp_path / "straight.safetensors", tmp_path / "broken.safetensors"
    assert main([*FUNCTION, "--epochs", "3", "--save", str(tmp_path / "a"), "-o", str(straight), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == 9 and [row["epoch"] for row in told["epochs"]] == [1, 2, 3]
    assert told["epochs"][-1]["loss"] < told["epochs"][0]["loss"]
    assert main([*FUNCTION, "--epochs", "3", "--steps", "4", "--save", str(tmp_path / "b")]) == 0  # within an epoch
    assert main([*FUNCTION, "--epochs", "3", "--save", str(tmp_path / "b"), "--resume", "-o", str(broken)]) == 0
    assert "goes on after step 4, in epoch 2" in capsys.readouterr().out
    one, two = parameters(straight), parameters(broken)
    assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
    final = [json.loads((tmp_path / d / "last" / "trainer.json").read_text())["extra"]["past"] for d in "ab"]
    assert final[0]["history"] == final[1]["history"]


def test_it_trains_as_a_program_would(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The first epoch, unshuffled, is the steps on the rows of the file in their order."""
    import importlib.util

    from gluongraph import random

    written = tmp_path / "out.safetensors"
    assert main([*FUNCTION, "--no-shuffle", "--seed", "3", "--save", str(tmp_path / "a"), "-o", str(written)]) == 0
    random.seed(3)
    np.random.seed(3)
    spec = importlib.util.spec_from_file_location("train", "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    step, x, y = module.make_step()
    step.memory(x, y)
    data = np.load("data.npz")
    for i in range(0, 160, 64):
        step(nd.array(data["x"][i : i + 64]), nd.array(data["y"][i : i + 64], dtype="int32"))
    mine = {p.name: p.data().asnumpy() for p in step.net.collect_params().values()}
    for array, found in zip(
        sorted(mine.values(), key=np.size), sorted(parameters(written).values(), key=np.size), strict=True
    ):
        assert np.array_equal(array, found)


def test_an_onnx_model_of_a_fixed_batch(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Batches are of the size that the file declares; `--trained` names what is trained."""
    written = tmp_path / "out.safetensors"
    command = ["train", "fixed.onnx", "data.npz", "--loss", "SoftmaxCrossEntropyLoss", "--discard", "--trained", "v"]
    assert main([*command, "--save", str(tmp_path / "a"), "-o", str(written), "--json"]) == 0
    assert parameters(written).keys() == {"v"}


def test_ctrl_c_saves_and_says_how_to_go_on(work: pathlib.Path, tmp_path: pathlib.Path) -> None:
    command = [*FUNCTION, "--epochs", "1000000", "--save", str(tmp_path / "run"), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gluongraph", *command[:-1]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    while not process.stdout.readline().startswith("epoch 2"):
        assert process.poll() is None, process.stderr.read()
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=600)
    assert process.returncode == 130 and "interrupted after step" in told
    step = int(told.split("after step ")[1].split(";")[0])
    assert (tmp_path / "run" / f"step-{step:08d}").is_dir()
    again = shlex.split(told.splitlines()[-1])
    assert again[0] == "gluongraph" and again[-1] == "--resume"
    assert main([*again[1:], "--steps", str(step + 2)]) == 0
    assert (tmp_path / "run" / f"step-{step + 2:08d}").is_dir()


def test_arrays_of_other_files(work: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = np.load("data.npz")
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", data[name])
    with (tmp_path / "data.safetensors").open("wb") as file:
        for piece in tensorfile.pieces({name: data[name] for name in ("x", "y")}):
            file.write(piece.data)
    losses = []
    files = [["x.npy", "y.npy"], ["data.safetensors", "--arrays", "x,y"]]
    for number, (first, *others) in enumerate([["data.npz"], *files]):
        given = [str(work / first) if number == 0 else str(tmp_path / first)]
        given += [str(tmp_path / word) if word.endswith(".npy") else word for word in others]
        command = ["train", "train.py:make_step", *given, "--save", str(tmp_path / f"run{number}"), "--json"]
        assert main([*command, "--batch-size", "64"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["epochs"])
    assert losses[0] == losses[1] == losses[2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["train.py:make_step", "no.npz"], "there is no file no.npz"),
        (["train.py:make_step", "train.py"], "data is an .npz"),
        (["train.py:make_step", "short.npz"], "cannot be read"),
        (["train.py:make_step", "odd.npz"], "as many rows"),
        (["train.py:make_step", "none.npz"], "none.npz holds no array"),
        (["train.py:make_step", "both.safetensors"], "--arrays"),
        (["train.py:make_step", "data.npz", "--arrays", "x,z"], "no array z"),
        (["train.py:make_step", "data.npz", "--arrays", "y,x"], "train.py:make_step: "),
        (["train.py:make_step", "data.npz", "--resume", "--save", "none"], "no checkpoint"),
        (["train.py:make_step", "data.npz", "--save", "data.npz"], "is a file"),
        (["train.py:make_step", "data.npz", "--save", "/proc/run"], "/proc/run cannot be written"),
        (["train.py:make_step", "data.npz", "-o", "no/such/file.params"], "no such folder"),
        (["train.py:make_step", "data.npz", "--batch-size", "500", "--discard"], "fewer than a batch"),
        (["train.py:network", "data.npz"], "--loss"),
        (["raw.py:net", "data.npz", "--loss", "L2"], "has not been initialized; call initialize()"),
        (["train.py:make_step", "data.npz", "--input", "4,8"], "--input is for a batch that is made up"),
        (["train.py:make_step", "data.npz", "--freeze", "a"], "--freeze is for ONNX models"),
        (["train.py:make_step", "data.npz", "--trained", "a"], "--trained is for ONNX models"),
        (["model.onnx", "data.npz", "--loss", "l2", "--trained", "a"], "trained: 'a' matches no float array"),
        (["fixed.onnx", "data.npz", "--loss", "l2"], "batches of 64 alone, and of 160 rows the last batch has 32: --d"),
        (["fixed.onnx", "data.npz", "--loss", "l2", "--discard", "--test", "data.npz"], "a whole number of batches to"),
        (["damaged.gga", "data.npz"], "damaged.gga"),
        (["model.onnx", "data.npz", "--loss", "L2Loss", "--optimizer", "what"], "what"),
    ],
)
def test_what_is_refused(
    made: pathlib.Path, work: pathlib.Path, wrong: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (work / "short.npz").write_bytes((work / "data.npz").read_bytes()[:100])
    np.savez(work / "none.npz")
    np.savez(work / "odd.npz", x=np.zeros((3, 8), np.float32), y=np.zeros(4, np.int32))
    with (work / "both.safetensors").open("wb") as file:
        for piece in tensorfile.pieces({"x": np.zeros((3, 8), np.float32), "y": np.zeros(3, np.int32)}):
            file.write(piece.data)
    (work / "damaged.gga").write_bytes(bytes(64))
    (work / "raw.py").write_text("from gluongraph import gluon\nnet = gluon.nn.Dense(3)\n")
    before = sorted(work.iterdir())
    assert main(["train", *wrong]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gluongraph train: ") and said in error and error.count("\n") == 1, error
    assert sorted(work.iterdir()) == before


def test_a_folder_that_holds_checkpoints_is_left_alone(
    work: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*FUNCTION, "--save", str(tmp_path / "run")]
    assert main(command) == 0
    before = sorted((tmp_path / "run").iterdir())
    assert main(command) == 2 and sorted((tmp_path / "run").iterdir()) == before
    assert "--resume goes on from them" in capsys.readouterr().err
    for wrong, said in ((["--loss", "L2Loss"], "has made its step already"), (["--nth", "2"], "--nth")):
        assert main([*command, *wrong]) == 2 and said in capsys.readouterr().err  # what --resume would not help with
