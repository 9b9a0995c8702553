"""A plain `pip install` does the main job: train, save, load, export, bundle, with what the wheel declares alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from environment import declared, environment, wheel
from packaging.requirements import Requirement

from gluongraph.cli import doctor

pytest.importorskip("setuptools", "77", reason="setuptools is too old to build the wheel: make .venv/.has-test")

PROGRAM = """
import numpy as np
import gluongraph as mx
from gluongraph import autograd, gluon, nd

def made():
    net = gluon.nn.Dense(3, in_units=4, prefix="net_")
    net.initialize(mx.init.One())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    return net, trainer, mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)

x, y = np.ones((5, 4), np.float32), np.arange(5, dtype=np.int32) % 3
net, trainer, step = made()
with autograd.record():
    loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(nd.array(x)), nd.array(y))
loss.backward()
trainer.step(5)
step(x, y)
net.save_parameters("net.params")
trainer.save_states("net.states")
nd.save("arrays.safetensors", {"x": nd.array(x)})
nd.save("arrays.params", {"x": nd.array(x)})
step.save("run")
step.export("step.gga")
net.hybridize()
net(nd.array(x))
net.export("symbol")
expected = step(x, y).asnumpy()

net, trainer, step = made()
net.load_parameters("net.params")
trainer.load_states("net.states")
assert (step(x, y).asnumpy() == expected).all()
net, trainer, step = made()
step.load("run")
assert (step(x, y).asnumpy() == expected).all()
assert (mx.load("step.gga")(x, y).asnumpy() == expected).all()
for name in ("arrays.safetensors", "arrays.params"):
    assert (nd.load(name)["x"].asnumpy() == x).all()
np.savez("data.npz", x=x, y=y)
np.save("x.npy", x)
np.save("y.npy", y)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    return environment(folder / "venv", wheel(folder))


COMMANDS = ["python -W error job.py", "gluongraph train step.gga data.npz --steps 6 --discard --save other"]
BUNDLE = [
    "gluongraph bundle step.gga -o bundle",
    "bundle/gg-run bundle/step.gga --data x.npy,y.npy --steps 1 --save there",
]


def test_the_main_job(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    search = f"{programs}:{tmp_path}:{os.environ['PATH']}"
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")} | {"PATH": search}
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    for line in [*COMMANDS, *(BUNDLE if compiler else [])]:
        done = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, env=clean)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_doctor_knows_what_needs_what(programs: Path) -> None:
    """Of a plain installation nothing is missing; what is optional is what the extras have, by their names."""
    done = subprocess.run([programs / "gluongraph", "doctor"], capture_output=True, text=True, cwd=programs)
    assert done.returncode == 0 and "missing" not in done.stdout
    for name, (extra, use) in doctor.OPTIONAL.items():
        assert f"not installed; needed by {use}\n" in done.stdout
        assert f"pip install 'gluongraph[{extra}]'" in done.stdout
        assert name in {Requirement(row).name for row in declared(extra)}
    assert not {Requirement(row).name for row in declared()} & set(doctor.OPTIONAL)


@pytest.mark.parametrize("extra", ["bench", "data", "examples", "onnx", "cuda"])
def test_doctor_has_each_package_of_the_extras(extra: str) -> None:
    own = {Requirement(row).name for row in declared(extra)} - {Requirement(row).name for row in declared()}
    assert own <= set(doctor.OPTIONAL)
