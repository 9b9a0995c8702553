"""The examples of docs/onnx.md run, one after the other, on a model that fits the first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as models
import pytest

import gluongraph as mx
from gluongraph import debug

pytestmark = pytest.mark.usefixtures("demo_environment")

TEXT = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text()


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        models.node("Conv", "x features.weight", "c", kernel_shape=[3, 3]),
        models.node("Relu", "c", "r"),
        models.node("Flatten", "r", "f"),
        models.node("Gemm", "f head.weight head.bias", "y", transB=1),
    ]
    arrays = {
        "features.weight": models.random(2, 1, 3, 3),
        "head.weight": models.random(10, 72),
        "head.bias": models.random(10),
    }
    proto = models.model(nodes, {"x": ["n", 1, 8, 8]}, ["y"], arrays)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    monkeypatch.chdir(tmp_path)
    tuning, *others = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    mx.random.seed(0)
    names: dict[str, Any] = {}
    with debug.override(backend="reference"):
        exec(compile(tuning, "onnx.md", "exec"), names)
    assert names["outputs"].shape == (32, 10) and np.isfinite(names["loss"].asnumpy()).all()
    now = {n: p.data().asnumpy() for n, p in names["net"].collect_params().items()}
    assert (now["features.weight"] == arrays["features.weight"]).all()
    assert (now["head.weight"] != arrays["head.weight"]).any()
    assert (tmp_path / "tuned.safetensors").exists()
    with debug.override(backend="reference"):
        for block in others:
            exec(compile(block, "onnx.md", "exec"), names)
    assert {"net.onnx", "step.onnx"} <= {path.name for path in tmp_path.iterdir()} and names["arrays"]
