"""The library for C, called in this process beside the step that it has to repeat: windows, scaled losses, errors."""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from trainings import SAMPLES

import gluongraph as mx
from gluongraph import gluon
from gluongraph.artefact import bundle
from gluongraph.dtypes import dtype_name
from gluongraph.runtime.checkpoint import load

TOO_LARGE = 2.0**60  # a scale of the loss that overflows some times until it fits


class Array(ctypes.Structure):
    """gg_array."""

    _fields_ = (
        ("dtype", ctypes.c_char_p),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
    )


class Training:
    """gg_training: a function of the header by its name without gg_."""

    def __init__(self, runner: pathlib.Path, artefact: pathlib.Path):
        self.library = ctypes.CDLL(str(runner / "lib" / bundle.LIBRARY))
        for name, result in (
            *(("load", ctypes.c_void_p), ("save", ctypes.c_char_p), ("error", ctypes.c_char_p)),
            *(("mean", ctypes.c_double), ("skipped", ctypes.c_int64), ("updates", ctypes.c_int64)),
            *(("learning_rate", ctypes.c_double), ("extra", ctypes.c_char_p)),
        ):
            getattr(self.library, f"gg_{name}").restype = result
        self.pointer = ctypes.c_void_p(self.library.gg_load(str(artefact).encode()))
        assert self.pointer, self.library.gg_error(None)

    def __getattr__(self, name: str) -> Any:
        return lambda *given: getattr(self.library, f"gg_{name}")(self.pointer, *given)

    def call(self, name: str, batch: Sequence[np.ndarray[Any, Any]]) -> float:
        """A call with a batch: the mean of its first result."""
        made = (Array * len(batch))()
        for place, array in zip(made, batch, strict=True):
            shape = (ctypes.c_int64 * array.ndim)(*array.shape)
            place.dtype, place.rank, place.shape = dtype_name(array.dtype).encode(), array.ndim, shape
            place.data = array.ctypes.data
        assert getattr(self, name)(made, len(batch)) == 0, self.error()
        return float(self.mean(0))


@pytest.fixture
def training(runner: pathlib.Path, tmp_path: pathlib.Path) -> Any:
    """A step in float16 whose loss is scaled by too much, the library at the same point, and batches."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(SAMPLES, 6)).astype(np.float32), rng.integers(0, 3, SAMPLES).astype(np.int32)
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(8, in_units=6, activation="relu"), gluon.nn.Dropout(0.2), gluon.nn.Dense(3, in_units=8))
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, precision="16-mixed")
    step(x[:8], y[:8])
    trainer.scaler.scale[:] = TOO_LARGE
    step.export(tmp_path / "step.gga", modes=["step", "accumulate", "apply"])
    return step, Training(runner, tmp_path / "step.gga"), [(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)]


def test_windows_and_scaled_losses(training: Any, tmp_path: pathlib.Path) -> None:
    step, ours, batches = training

    def alike() -> None:
        there, here = (
            load(pathlib.Path(ours.save(str(tmp_path / "run").encode()).decode())),
            mx.checkpoint.taken(step, None, None),
        )
        for group, arrays in here.groups.items():
            assert arrays.keys() == there.groups[group].keys()
            assert all(array.tobytes() == there.groups[group][name].tobytes() for name, array in arrays.items())
        for part in ("progress", "window"):
            assert there.about["parts"].get(part) == here.about["parts"].get(part)
        generators = (about["parts"]["random"]["gluongraph"]["devices"] for about in (there.about, here.about))
        assert next(generators) == next(generators)

    for i in range(48):  # until the scale of the loss fits
        loss = step(*batches[i % 4]).asnumpy().astype(np.float64)
        assert ours.call("step", batches[i % 4]) == float(sum(loss.tolist()) / loss.size)
    assert 0 < step.skipped == ours.skipped() < 48 == step.skipped + ours.updates() - 1
    alike()
    for i in range(2):
        step.accumulate(*batches[i])
        ours.call("accumulate", batches[i])
    alike()  # within a window
    step.apply()
    assert ours.apply() == 0
    alike()
    assert ours.apply() == 1 and b"nothing has been accumulated" in ours.error()
    alike()


def test_what_it_tells_and_takes(training: Any, tmp_path: pathlib.Path) -> None:
    step, ours, batches = training
    assert ours.learning_rate() == 0.01
    assert ours.set_learning_rate(ctypes.c_double(0.02)) == 0 and ours.learning_rate() == 0.02
    assert ours.set_learning_rate(ctypes.c_double(float("nan"))) == 1 and ours.learning_rate() == 0.02
    assert ours.set_extra(b'{"epoch": 3}') == 0 and ours.set_extra(b"[") == 1
    place = ours.save(str(tmp_path / "run").encode()).decode()
    assert step.load(place) == {"epoch": 3} and step.trainer.learning_rate == 0.02
    wrong = (Array * 1)()
    assert ours.step(wrong, 1) == 1 and b"is not filled in" in ours.error()
    assert ours.restore(str(tmp_path / "none").encode()) == 1 and b"there is no folder" in ours.error()
    with pytest.raises(AssertionError, match=r"step of f32\[8,6\]: the artefact takes f32\[8,6\], i32\[8\]"):
        ours.call("step", batches[0][:1])
