"""From a model of PyTorch's to a file that trains without Python: ONNX in, a compiled training step out.

    python examples/deploy.py --folder work
    gluongraph bundle work/digits.gga -o work/digits
    work/digits/gg-run work/digits/digits.gga --data work/train-x.npy,work/train-y.npy --passes 5 --shuffle 1 \\
        --evaluate work/test-x.npy,work/test-y.npy --save work/run

Writes model.onnx, made by PyTorch where it and onnxscript are installed and else by onnx.helper, its training step as
digits.gga, and scikit-learn's handwritten digits as data. docs/deploy.md goes through it.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import gluongraph as mx
from gluongraph import gluon

BATCH, CHANNELS, CLASSES = 64, 16, 10
TRAINED = 1437  # of 1,797 scans


def write_with_torch(path: Path) -> None:
    """The model as PyTorch exports it; without the exporter's optimizations, which keeps the parameters as they are."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, CHANNELS, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * CHANNELS, CLASSES),
    )
    torch.onnx.export(
        net,
        (torch.zeros(2, 1, 8, 8),),
        str(path),
        dynamo=True,
        optimize=False,
        input_names=["image"],
        dynamic_shapes=({0: torch.export.Dim("n")},),
        external_data=False,
        verbose=False,
    )


def write_with_helper(path: Path) -> None:
    """The same model, put together by hand."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    shapes = {"w": (CHANNELS, 1, 3, 3), "b": (CHANNELS,), "v": (CLASSES, 16 * CHANNELS), "c": (CLASSES,)}
    arrays = {name: rng.uniform(-0.1, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["image", "w", "b"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("MaxPool", ["relu"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool"], ["flat"]),
        helper.make_node("Gemm", ["flat", "v", "c"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def main(argv: Sequence[str] | None = None) -> Path:
    """Write all files; gives the artefact's path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("work"))
    options = parser.parse_args(argv)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)

    exporter = importlib.util.find_spec("torch") and importlib.util.find_spec("onnxscript")
    write = write_with_torch if exporter else write_with_helper
    write(folder / "model.onnx")
    net = mx.onnx.load(folder / "model.onnx")

    digits = load_digits()
    x, y = (digits.images / 16).astype(np.float32)[:, None], digits.target.astype(np.int32)
    for name, part in (("train", slice(None, TRAINED)), ("test", slice(TRAINED, None))):
        np.save(folder / f"{name}-x.npy", x[part])
        np.save(folder / f"{name}-y.npy", y[part])

    schedule = mx.lr_scheduler.CosineScheduler(2000, base_lr=3e-3, final_lr=1e-4, warmup_steps=50)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"lr_scheduler": schedule})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    sizes = sorted(
        {BATCH, TRAINED % BATCH, (len(x) - TRAINED) % BATCH}, reverse=True
    )  # and what is left over at the end of a pass
    artefact = folder / "digits.gga"
    step.export(artefact, batches=[(x[:size], y[:size]) for size in sizes], modes=["step", "evaluate", "predict"])
    print(f"{artefact}: {artefact.stat().st_size / 2**20:.1f} MiB, batches of {', '.join(map(str, sizes))}")
    return artefact


if __name__ == "__main__":
    main()
