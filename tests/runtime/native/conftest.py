"""The runner, compiled once and kept in the cache; where there is no C++ compiler its tests are skipped."""

from __future__ import annotations

import os
import pathlib
import shutil

import numpy as np
import pytest
from trainings import images

import gluongraph as mx
from gluongraph import gluon
from gluongraph.artefact import bundle
from gluongraph.runtime import tensorfile


@pytest.fixture(scope="session")
def runner() -> pathlib.Path:
    """The folder with gg-run and lib/."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("there is no C++ compiler: install g++")
    return bundle.built()


@pytest.fixture(scope="session")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small training, as a file; beside it the data it is for."""
    folder, (x, y) = tmp_path_factory.mktemp("artefact"), images()
    net = gluon.nn.Dense(3, in_units=64)
    net.initialize()
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), gluon.Trainer(net.collect_params(), "sgd"))
    step(x[:32], y[:32])
    step.export(folder / "step.gga", modes=["step", "predict", "accumulate", "apply"])
    pieces = tensorfile.pieces({"x": x.astype(np.float64), "y": y})
    (folder / "data.safetensors").write_bytes(b"".join(piece.tobytes() for piece in pieces))
    return folder / "step.gga"
