"""The runner without Python: the same bits as Python's compiled step, checkpoints both ways, what is refused."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from trainings import TRAININGS, WORDS, batch, go, images, logged, mean, run, weights

import gluongraph as mx
from gluongraph.errors import IndexRangeError
from gluongraph.runtime import tensorfile
from gluongraph.runtime.checkpoint import load


@pytest.fixture(scope="module", params=TRAININGS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A step at its second update, its data, and a folder with both as files."""
    make, data_of = TRAININGS[request.param]
    folder, data = tmp_path_factory.mktemp(request.param), data_of()
    mx.random.seed(5)
    step = make()
    go(step, data, range(2))
    modes = ["step", "evaluate"] if request.param == "convolutions" else ["step"]
    step.export(folder / "step.gga", batch_sizes=[32, 5], modes=modes)
    for name, array in zip("xy", data, strict=True):
        np.save(folder / f"{name}.npy", array)
    return step, data, folder


def test_the_runner_trains_to_the_same_bits(exported: Any, runner: pathlib.Path) -> None:
    step, data, folder = exported
    files = f"{folder}/x.npy,{folder}/y.npy"
    first = ["--data", files, "--steps", 60, "--log", folder / "a.jsonl", "--save", folder / "run", "--threads", 1]
    done = run(runner, folder / "step.gga", *first)
    assert done.returncode == 0 and "loss" in done.stdout, done.stderr
    assert logged(folder / "a.jsonl") == go(step, data, range(60))

    # Python goes on from the runner's checkpoint, in the same step; and the runner from Python's.
    there = load(folder / "run")
    ours = mx.checkpoint.taken(step, None, None)
    for group, arrays in ours.groups.items():
        assert arrays.keys() == there.groups[group].keys()
        for name, array in arrays.items():
            assert array.tobytes() == there.groups[group][name].tobytes(), name
    go(step, data, range(1))
    step.load(folder / "run")
    losses = go(step, data, range(60, 80))
    step.save(folder / "run")
    losses += go(step, data, range(80, 100))

    more = ["--data", files, "--load", folder / "run/step-00000062", "--steps", 40, "--log", folder / "b.jsonl"]
    assert run(runner, folder / "step.gga", *more, "--save", folder / "more").returncode == 0
    assert logged(folder / "b.jsonl") == losses
    last = ["--data", files, "--load", folder / "run/step-00000082", "--steps", 20, "--log", folder / "c.jsonl"]
    assert run(runner, folder / "step.gga", *last, "--threads", 2).returncode == 0
    assert logged(folder / "c.jsonl") == losses[20:]
    for name, array in load(folder / "more").groups["params"].items():
        assert array.tobytes() == weights(step)[name].tobytes()


@pytest.mark.parametrize("exported", ["language"], indirect=True)
def test_indices_out_of_range_are_refused(exported: Any, runner: pathlib.Path) -> None:
    """By the runner and by the loaded artefact, which names the element too; nothing has changed."""
    _, (x, y), folder = exported
    wrong = x.copy()
    wrong[3, 2] = WORDS
    np.save(folder / "wrong.npy", wrong)
    words = ["--data", f"{folder}/wrong.npy,{folder}/y.npy", "--steps", 1, "--save", folder / "none"]
    done = run(runner, folder / "step.gga", *words)
    checks = f"Embedding: index, from 0 to {WORDS - 1}; or SoftmaxCrossEntropyLoss: label, from 0 to {WORDS - 1}"
    assert (done.returncode, done.stderr) == (2, f"gg-run: out of range, and nothing has changed: {checks}\n")
    assert not (folder / "none").exists()
    step = mx.load(folder / "step.gga")
    before = {name: array.tobytes() for name, array in weights(step).items()}
    with pytest.raises(IndexRangeError, match=rf"Embedding: index {WORDS} at \(3, 2\) is not an integer"):
        step(wrong[:32], y[:32])
    assert {name: array.tobytes() for name, array in weights(step).items()} == before
    assert np.isfinite(mean(step(x[:32], y[:32])))


@pytest.mark.parametrize("exported", ["convolutions"], indirect=True)
def test_it_evaluates_what_python_evaluates(exported: Any, runner: pathlib.Path) -> None:
    step, data, folder = exported
    step.save(folder / "now")
    files = f"{folder}/x.npy,{folder}/y.npy"
    done = run(runner, folder / "step.gga", "--load", folder / "now", "--evaluate", files)
    parts = [mean(step.evaluate(*batch(data, i))) * size for i, size in enumerate((32, 5))]
    assert done.stdout.split() == f"evaluated on 37 samples: loss {sum(parts) / 37:.6g}".split()


def test_it_predicts_what_python_predicts(artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (x, _), out = images(), tmp_path / "out.npy"
    np.save(tmp_path / "x.npy", x)
    words = ["--predict", tmp_path / "x.npy", "--drop-last", "--output"]
    assert run(runner, artefact, *words, out).stdout == f"predicted 32 samples: {out}\n"
    assert run(runner, artefact, *words, tmp_path / "out.safetensors").returncode == 0
    expected = mx.load(artefact).predict(x[:32]).asnumpy()
    found = tensorfile.parse(np.fromfile(tmp_path / "out.safetensors", np.uint8), "out")
    assert np.load(out).tobytes() == found["out0"].tobytes() == expected.tobytes()
    assert np.load(out).shape == found["out0"].shape == expected.shape
    done = run(runner, artefact, *words, out)
    assert done.returncode == 2 and "out.npy is there already" in done.stderr


def test_it_accumulates_what_python_accumulates(
    artefact: pathlib.Path, runner: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    data, folder = artefact.with_name("data.safetensors"), tmp_path / "run"
    words = ["--data", data, "--passes", 5, "--accumulate", 2, "--drop-last", "--save", folder]
    done = run(runner, artefact, *words, "--log", tmp_path / "log")
    assert done.returncode == 0, done.stderr
    step, losses = mx.load(artefact), []
    for count in (2, 2, 1):  # the last window has one batch
        losses.append(sum(mean(step.accumulate(*(a[:32] for a in images()))) for _ in range(count)) / count)
        step.apply()
    assert logged(tmp_path / "log") == losses
    for name, array in load(folder).groups["params"].items():
        assert array.tobytes() == weights(step)[name].tobytes()
