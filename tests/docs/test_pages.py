"""docs/migrating.md, docs/pytorch.md and docs/lightning.md: their programs run, and lead where the pages say."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph.nd.files import load

pytestmark = pytest.mark.usefixtures("demo_environment")

ROOT = pathlib.Path(__file__).parents[2]


def blocks(page: str, language: str = "python") -> list[str]:
    """The programs of a page. Those that need PyTorch are marked `py`."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def test_the_way_of_a_script(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What section 1 says to do to the imports is done here; `tests/mxnet` runs scripts that say `import mxnet`."""
    monkeypatch.chdir(tmp_path)
    np.random.seed(1)  # by which the loader shuffles
    script, compiled, saved = blocks("migrating.md")
    names: dict[str, Any] = {}
    exec(compile(script.replace("mxnet", "gluongraph"), "migrating.md", "exec"), names)
    assert names["l"].mean().asscalar() < 0.8 < np.log(3)
    exec(compile(compiled, "migrating.md", "exec"), names)
    assert names["trainer"].optimizer.num_update == 48, "half of them eager"
    assert (names["step"].predict(names["x"]).argmax(axis=1) == names["y"]).mean().asscalar() > 0.9
    pytest.importorskip("onnx")
    exec(compile(saved, "migrating.md", "exec"), names)
    assert set(load("net.params")) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    step = mx.load("net.gga")
    step.load("run")
    np.testing.assert_array_equal(
        step.predict(names["x"][:64]).asnumpy(), names["step"].predict(names["x"][:64]).asnumpy()
    )
    assert (tmp_path / "net.onnx").stat().st_size > 1000


def test_the_page_for_users_of_pytorch() -> None:
    mx.random.seed(0)
    names: dict[str, Any] = {}
    exec(compile(*blocks("pytorch.md"), "pytorch.md", "exec"), names)
    assert np.isfinite(names["loss"].asscalar()) and names["step"].grad_norm > 0


def test_the_page_of_the_training_loop(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(*blocks("lightning.md"), "lightning.md", "exec"), names)
    assert names["trainer"].global_step == 8 and 0 < float(names["trainer"].callback_metrics["train_loss"]) < 3


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_page_of_the_training_loop_begins_with_a_training(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(blocks("lightning.md", "py")[0])
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, check=True, capture_output=True, timeout=200)
    assert list(tmp_path.rglob("*.ckpt"))
