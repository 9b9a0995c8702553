"""`import mxnet` on gluongraph: what is found, what is refused and how, in a program and from the command line."""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import gluongraph
from gluongraph.mxnet import install, uninstall
from gluongraph.mxnet.modules import _place
from gluongraph.mxnet.names import ATTRIBUTES, MODULES

SCRIPT = """
import argparse
import mxnet as mx
import mxnet.ndarray as F
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn
import mxnet.gluon.rnn
import mxnet.optimizer as optim

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
options = parser.parse_args()

mx.random.seed(3)
net = nn.HybridSequential()
with net.name_scope():
    net.add(nn.Dense(4, activation="relu"), nn.Dense(1))
net.initialize(mx.init.Xavier(), ctx=mx.cpu())
trainer = gluon.Trainer(net.collect_params(), optim.SGD(learning_rate=0.1))
x, y = nd.random.uniform(shape=(8, 3)), nd.ones((8, 1))
losses = []
for _ in range(options.steps):
    with autograd.record():
        loss = gluon.loss.L2Loss()(net(x), y)
    loss.backward()
    trainer.step(8)
    losses.append(F.mean(loss).asscalar())
assert __name__ == "__main__"
print(mx.__version__, len(losses), losses[-1] < losses[0])
"""


@pytest.fixture
def shim() -> Iterator[None]:
    install()
    try:
        yield
    finally:
        uninstall()


def test_a_script_runs_from_the_command_line(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "gluongraph.mxnet", str(script), "--steps", "5"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1.9.1", "5", "True"]


def test_modules_beside_the_script_are_found(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text("from mxnet import nd\nvalue = nd.ones((2,)).sum().asscalar()\n")
    (tmp_path / "main.py").write_text("import model\nprint(model.value)\n")
    command = [sys.executable, "-m", "gluongraph.mxnet", str(tmp_path / "main.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.stdout.strip() == "2.0", done.stderr


@pytest.mark.parametrize(("words", "said"), [([], "script.py"), (["no.py"], "there is no file no.py\n")])
def test_usage(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "gluongraph.mxnet", *words], capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_modules_run_from_the_command_line(tmp_path: pathlib.Path) -> None:
    """pytest on a file of tests that import mxnet, unchanged."""
    (tmp_path / "test_it.py").write_text("import mxnet as mx\ndef test_it():\n    assert mx.nd.ones(2).sum() == 2\n")
    command = [sys.executable, "-m", "gluongraph.mxnet", "-m", "pytest", "-q", "--noconftest", "test_it.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.usefixtures("shim")
def test_names_are_those_of_gluongraph() -> None:
    import mxnet as mx
    from mxnet import gluon, nd
    from mxnet.gluon import nn
    from mxnet.gluon.nn import basic_layers

    assert nn.Dense is gluongraph.gluon.nn.Dense is basic_layers.Dense
    assert gluon.Block is gluongraph.gluon.Block and mx.Context is gluongraph.Context
    assert nd.NDArray is mx.ndarray.NDArray is gluongraph.nd.NDArray
    assert mx.nd.random.uniform is mx.random.uniform is gluongraph.random.uniform
    assert mx.init.Xavier is gluongraph.init.Xavier and mx.kv.create is gluongraph.kv.create
    assert mx.base.MXNetError is mx.MXNetError is gluongraph.MXNetError
    assert not mx.util.is_np_array() and mx.cpu_pinned() == mx.cpu()
    both = nd._internal._plus(nd.ones((2,)), nd.ones((2,)))
    assert nd._internal._rminus_scalar(both, scalar=5.0).asnumpy().tolist() == [3, 3]
    with mx.engine.bulk(10):
        assert mx.engine.set_bulk_size(5) == 0


class AsksForF(gluongraph.gluon.HybridBlock):
    """What Gluon code asks of F, to take the shape of an array or another way to it."""

    def hybrid_forward(self, F: Any, x: Any, modules: Any = None) -> Any:
        assert F is self.modules[0] and all(F is m and m == F for m in self.modules)
        assert not any(F is m for m in self.others)
        return F.reshape(x, (x.shape[1], -1))


@pytest.mark.parametrize("hybridize", [False, True])
def test_f_is_the_module_of_arrays(shim: Any, hybridize: bool) -> None:
    import mxnet as mx
    import mxnet.ndarray as long
    import mxnet.ndarray.ndarray
    import mxnet.nd.random  # isort: skip
    from mxnet import nd, ndarray

    block = AsksForF()
    block.modules = (mx.nd, mx.ndarray, long, nd, ndarray, gluongraph.nd, gluongraph.ndarray)
    block.others = (mx.sym, mx.symbol, gluongraph.sym)
    block.hybridize(hybridize)
    assert block(nd.ones((2, 3))).shape == (3, 2)
    assert isinstance(nd.ones(1), mx.gluon.tensor_types) and mx.nd.ndarray.NDArray is mx.nd.NDArray
    assert mx.nd.op.relu is mx.nd.relu
    assert mx.ndarray.ndarray._DTYPE_NP_TO_MX is mxnet.ndarray.ndarray._DTYPE_NP_TO_MX
    assert mxnet.nd.random.uniform is gluongraph.random.uniform


@pytest.mark.usefixtures("shim")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nd.softmx", r"^nd\.softmx does not exist.*\n.*test_shim.*\n.*: softmax"),
        ("gluon.nn.Danse", r"mxnet\.gluon\.nn\.Danse(.|\n)*gluon\.nn\.Dense"),
        ("mod.Module", r"mxnet\.mod\.Module does(.|\n)*gluon\.Trainer"),
        ("np.zeros", r"mxnet\.np\.zeros (.|\n)*mx\.nd"),
        ("npx.set_np", r"mxnet\.npx(.|\n)*mx\.nd"),
        ("sym.FullyConnected", r"mxnet\.sym\.FullyConnected(.|\n)*HybridBlock"),
        ("rtc.CudaModule", r"mxnet\.rtc(.|\n)*gluongraph\.compile"),
        ("callback.Speedometer", r"mxnet\.callback(.|\n)*training loop"),
        ("qwertz", r"mxnet\.qwertz does not exist"),
    ],
)
def test_what_is_missing_is_named(name: str, says: str) -> None:
    import mxnet as mx

    owner = mx
    with pytest.raises(NotImplementedError, match=says):
        for part in name.split("."):
            owner = getattr(owner, part)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("np", "mx.nd has MXNet's classic arrays"),
        ("npx", "numpy semantics cannot be switched on"),
        ("mod", r"gluongraph\.compile"),
        ("viz", r"Block\.summary"),
        ("sym.FullyConnected", r"HybridBlock"),
        ("gluon.model_zoo.text", "load_parameters"),
        ("image.ImageDetIter", "DataLoader"),
        ("init.FusedRNN", "initializer of its own"),
    ],
)
def test_what_is_missing_is_named_without_the_shim(name: str, says: str) -> None:
    """`import gluongraph as mx` in place of `import mxnet as mx`: the same help, as an attribute and when imported."""
    owner: Any = gluongraph
    *owners, last = name.split(".")
    for part in owners:
        owner = getattr(owner, part)
    with pytest.raises(AttributeError, match=rf"{last} does not exist\n.*test_shim(.|\n)*help: .*{says}") as caught:
        getattr(owner, last)
    assert isinstance(caught.value, NotImplementedError) and not hasattr(owner, last)
    with pytest.raises(ImportError, match=rf"{last} does not exist\n.*<string>:1(.|\n)*help: .*{says}"):
        exec(f"from {owner.__name__} import {last}", {})


@pytest.mark.parametrize(
    "line",
    [
        "from gluongraph.base import MXNetError",
        "from gluongraph.util import is_np_array",
        "from gluongraph.model import save_checkpoint",
        "from gluongraph.ndarray import NDArray, zeros, contrib; contrib.foreach",
        "import gluongraph as mx; mx.ndarray.zeros((2,)) + mx.ndarray.random.uniform(shape=(2,))",
        "import gluongraph.ndarray as F; F.linalg.gemm2",
        "from gluongraph.gluon.nn import SymbolBlock; SymbolBlock.imports",
        "from gluongraph.gluon import data as gdata, loss as gloss, nn, rnn, utils as gutils",
        "from gluongraph.gluon.data.vision import datasets, transforms",
        "from gluongraph.contrib import amp, text",
    ],
)
def test_imports_with_the_name_replaced(line: str) -> None:
    """As scripts have them; in a process of its own nothing has been imported before."""
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_of_mxnet_that_need_no_shim() -> None:
    assert gluongraph.base.MXNetError is gluongraph.MXNetError and gluongraph.cpu_pinned() == gluongraph.cpu()
    assert not gluongraph.util.is_np_array() and callable(gluongraph.model.load_checkpoint)
    with pytest.raises(AttributeError, match="no attribute 'qwertz'"):
        _ = gluongraph.qwertz


@pytest.mark.usefixtures("shim")
def test_missing_classes_and_methods_are_named() -> None:
    import mxnet as mx

    dense = mx.gluon.nn.Dense(1)
    dense.initialize()
    for ask, says in {
        lambda: mx.autograd.get_symbol(mx.nd.ones(1)): r"mxnet\.autograd\.get_symbol(.|\n)*trace",
        lambda: dense(mx.sym.var("data")): r"Symbol\.\w+(.|\n)*take arrays",
    }.items():
        with pytest.raises(NotImplementedError, match=says):
            ask()
    assert dense.weight.var().name == dense.weight.name
    assert not hasattr(dense, "optimize_for") and not hasattr(dense, "qwertz")


@pytest.mark.usefixtures("shim")
def test_features() -> None:
    import mxnet as mx

    features = mx.runtime.Features()
    assert features.is_enabled("cuda") == (mx.context.num_gpus() > 0) and not features["CUDNN"].enabled
    with pytest.raises(RuntimeError, match="no feature 'QWERTZ'"):
        features.is_enabled("QWERTZ")


@pytest.mark.usefixtures("shim")
def test_scripts_that_probe_go_on() -> None:
    import mxnet as mx

    assert not hasattr(mx.npx, "relu") and getattr(mx.nd, "nothing", None) is None
    with pytest.raises(NotImplementedError, match=r"mxnet\.contrib\.onnx"):
        exec("from mxnet.contrib import onnx")
    with pytest.raises(NotImplementedError, match=r"gluon\.data\.nothing"):
        exec("from mxnet.gluon.data import nothing")
    with pytest.raises(AttributeError):
        _ = mx.__wrapped__


@pytest.mark.usefixtures("shim")
def test_checkpoints(tmp_path: pathlib.Path) -> None:
    import mxnet as mx

    prefix = str(tmp_path / "net")
    graph = mx.sym.var("data")
    mx.model.save_checkpoint(prefix, 3, graph, {"w": mx.nd.ones((2,))}, {"mean": mx.nd.zeros((1,))})
    back, arg, aux = mx.model.load_checkpoint(prefix, 3)
    assert back == graph and arg["w"].asnumpy().tolist() == [1, 1] and list(aux) == ["mean"]
    mx.nd.save(f"{prefix}-0003.params", {"w": mx.nd.ones((2,))})
    with pytest.raises(ValueError, match="begin with arg: or aux:"):
        mx.model.load_params(prefix, 3)


def test_operators_that_a_block_asks_for_and_that_are_missing() -> None:
    class Net(gluongraph.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.SpatialTransformerr(x)

    with pytest.raises(NotImplementedError, match=r"nd\.SpatialTransformerr does not exist"):
        Net()(gluongraph.nd.ones((2,)))
    with pytest.raises(NotImplementedError, match=r"nearest that do: topk"):
        _ = gluongraph.nd.topkk
    assert not hasattr(gluongraph.nd, "topkk")


@pytest.mark.usefixtures("shim")
def test_sparse_storage_is_refused() -> None:
    import mxnet as mx

    x = mx.nd.ones((2, 3))
    assert x.stype == "default" and x.tostype("default") is x
    for make in (
        lambda: mx.nd.zeros((2, 3), stype="row_sparse"),
        lambda: x.tostype("csr"),
        lambda: mx.nd.cast_storage(x, "csr"),
        lambda: mx.nd.sparse.csr_matrix((2, 3)),
    ):
        with pytest.raises(NotImplementedError, match=r"sparse_grad=True"):
            make()
    x.attach_grad(stype="row_sparse")
    assert isinstance(x.grad, mx.nd.sparse.RowSparseNDArray)


@pytest.mark.usefixtures("shim")
def test_modules_that_a_script_imports_and_does_not_use() -> None:
    from mxnet import callback, module, npx
    from mxnet.base import _LIB
    from mxnet.numpy import ndarray
    from mxnet.operator import __name__ as name

    assert name == "mxnet.operator"
    with pytest.raises(NotImplementedError, match=r"mxnet\.npx\.relu does not exist"):
        npx.relu(1)
    with pytest.raises(NotImplementedError, match=r"mxnet\.numpy\.ndarray does not exist"):
        ndarray((2,))
    with pytest.raises(NotImplementedError, match=r"mxnet\.base\._LIB\.MXNotifyShutdown(.|\n)*C library"):
        _LIB.MXNotifyShutdown()
    with pytest.raises(NotImplementedError, match=r"mxnet\.callback\.Speedometer"):
        callback.Speedometer(10)
    from mxnet.module import BaseModule

    class Own(BaseModule):  # type: ignore[misc]
        """The class can be made, and no object of it."""

    with pytest.raises(NotImplementedError, match=r"mxnet\.module\.BaseModule"):
        Own()
    assert not hasattr(module, "Module")


@pytest.mark.usefixtures("shim")
def test_functions_that_are_called_as_their_modules() -> None:
    from mxnet.gluon.model_zoo import vision
    from mxnet.gluon.model_zoo.vision.alexnet import AlexNet

    assert vision.alexnet is gluongraph.gluon.model_zoo.vision.alexnet
    assert AlexNet is vision.AlexNet


@pytest.mark.usefixtures("shim")
def test_import_star() -> None:
    found: dict[str, object] = {}
    exec("from mxnet.gluon.nn import *", found)
    assert found["Dense"] is gluongraph.gluon.nn.Dense


def test_install_twice_and_back() -> None:
    before = list(sys.meta_path)
    install()
    install()
    importlib.import_module("mxnet")
    uninstall()
    assert sys.meta_path == before and "mxnet" not in sys.modules


def test_the_real_mxnet_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    real = type(sys)("mxnet")
    real.__file__ = "/somewhere/mxnet/__init__.py"
    monkeypatch.setitem(sys.modules, "mxnet", real)
    with pytest.raises(ImportError, match="imported already"):
        install()


@pytest.mark.usefixtures("shim")
def test_the_tables_name_what_exists() -> None:
    for path in MODULES:
        assert _place(path) is not None, f"mxnet.{path} is said to be {MODULES[path]}, which does not exist"
    for (module, attribute), place in ATTRIBUTES.items():
        owner, _, name = place.partition(":")
        __import__(owner)
        assert not name or hasattr(sys.modules[owner], name), f"mxnet.{module}.{attribute} is said to be {place}"
