"""Numbers that constructors of layers, cells, losses, initializers, samplers and transforms cannot use: refused."""

from __future__ import annotations

import ast
import inspect
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, init, nd
from gluongraph.gluon import data, loss, nn, rnn
from gluongraph.gluon.contrib import cnn as contrib_cnn
from gluongraph.gluon.contrib import nn as contrib_nn
from gluongraph.gluon.contrib import rnn as contrib_rnn
from gluongraph.gluon.data import batchify
from gluongraph.gluon.data.vision import transforms
from gluongraph.ranges import FINITE, NOT_NEGATIVE, NUMBER, POSITIVE, Range, check_range

ROOT = pathlib.Path(__file__).parent.parent.parent
HERE = pathlib.Path(__file__).name
NAN, INF = math.nan, math.inf
MODULES = (nn, rnn, contrib_nn, contrib_rnn, contrib_cnn, loss, init, data, batchify, transforms)
OWN = ("gluongraph.gluon.", "gluongraph.initializer.")
NUMBERS = re.compile(r"\b(float|int|Extents|Size)\b")

# What constructors need besides the argument that is looked at, by the argument's name.
NEEDED: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("units", "input_dim", "output_dim", "hidden_size", "projection_size"), lambda: 2),
    **dict.fromkeys(("channels", "kernel_size", "hidden_channels", "i2h_kernel", "h2h_kernel"), lambda: 3),
    **dict.fromkeys(("factor", "size", "length", "interval", "batch_size", "width", "height"), lambda: 2),
    **dict.fromkeys(("x", "y", "batch_axis", "rotation_degrees"), lambda: 0),
    **dict.fromkeys(("rate", "alpha", "brightness", "contrast", "saturation", "hue"), lambda: 0.5),
    "weight": lambda: None,
    "base_cell": lambda: rnn.GRUCell(2),
    "angle_limits": lambda: (-1, 1),
    "dataset": lambda: [1, 2],
    "sampler": lambda: range(2),
    "transforms": list,
}
# What is not looked at in the constructor, and why: by argument, or by class and argument.
LATER: dict[str, str] = {
    **dict.fromkeys(("axis", "axes", "batch_axis"), "held against the axes of the array that comes"),
    "interpolation": "the number of a method, which the picture's size may decide",
    "Pad.val": "a filling may be NaN",
    "SequentialSampler.start": "any integer, and range() takes no other number",
    "DataLoader.pin_device_id": "is taken and changes nothing",
}


def classes(module: ModuleType) -> Iterator[type]:
    for name in getattr(module, "__all__", dir(module)):
        cls = getattr(module, name)
        if inspect.isclass(cls) and cls.__module__.startswith(OWN) and not name.startswith("_"):
            yield cls


def numbers_of(cls: type) -> list[str]:
    parameters = inspect.signature(cls).parameters.values()
    return [p.name for p in parameters if NUMBERS.search(str(p.annotation))]


FOUND = {
    (cls.__name__, key): cls
    for module in MODULES
    for cls in classes(module)
    for key in numbers_of(cls)
    if key not in LATER and f"{cls.__name__}.{key}" not in LATER
}


def needed(cls: type, key: str) -> dict[str, Any]:
    made = {}
    for p in inspect.signature(cls).parameters.values():
        if p.name == "input_shape":
            made[p.name] = (1, *(5,) * int(cls.__name__[4]))
        elif p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD:
            made[p.name] = NEEDED[p.name]()
    made.pop(key, None)
    return made


@pytest.mark.parametrize(("name", "key"), FOUND, ids=lambda part: part)
def test_no_number_is_nan(name: str, key: str) -> None:
    """The error names the class, the argument and the user's line."""
    cls = FOUND[name, key]
    rest = needed(cls, key)
    annotation = str(inspect.signature(cls).parameters[key].annotation)
    wrong = [NAN, np.float32(NAN), *([(1, NAN)] if "tuple" in annotation else [])]
    for value in wrong:
        with pytest.raises((ValueError, AssertionError, TypeError)) as caught:
            cls(**rest, **{key: value})
        first, where, *_ = str(caught.value).split("\n")
        assert first.startswith(f"{name}: ") and key in first and "nan" in first
        assert f"{HERE}:" in where


def test_all_kinds_of_classes_are_looked_at() -> None:
    """The search finds what it should, and every exception is one of something."""
    found = {f"{name}.{key}" for name, key in FOUND}
    assert len(found) > 150
    assert {"BatchNorm.momentum", "LSTM.dropout", "L2Loss.weight", "Xavier.magnitude", "RandomGray.p"} <= found
    everything = {(cls.__name__, key) for module in MODULES for cls in classes(module) for key in numbers_of(cls)}
    known = {key for _, key in everything} | {f"{name}.{key}" for name, key in everything}
    assert LATER.keys() <= known


def test_messages_of_constructors_say_the_users_line() -> None:
    """Every raise in an __init__ of gluon and initializer; a KeyError shows its text as repr, on one line."""
    wrong = [
        f"{file.relative_to(ROOT)}:{found.lineno}"
        for folder in ("gluon", "initializer")
        for file in (ROOT / "gluongraph" / folder).rglob("*.py")
        for init in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
        for found in ast.walk(init)
        if isinstance(found, ast.Raise) and isinstance(found.exc, ast.Call)
        if "with_user_location(" not in (text := ast.unparse(found.exc)) and not text.startswith("KeyError")
    ]
    assert not wrong


X = nd.ones((2,))
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: nn.BatchNorm(momentum=2), ValueError, "BatchNorm: momentum must be from 0 to 1, not 2"),
    (lambda: nn.BatchNorm(momentum=-0.1), ValueError, "BatchNorm: momentum must be from 0 to 1, not -0.1"),
    (lambda: nn.BatchNormReLU(epsilon=-1), ValueError, "BatchNormReLU: epsilon must be finite and at least 0, not -1"),
    (lambda: contrib_nn.SyncBatchNorm(momentum=2), ValueError, "SyncBatchNorm: momentum must be from 0 to 1, not 2"),
    (lambda: nn.LayerNorm(epsilon=INF), ValueError, "LayerNorm: epsilon must be finite and at least 0, not inf"),
    (lambda: nn.GroupNorm(0), ValueError, "GroupNorm: num_groups is a whole number from 1 on, not 0"),
    (lambda: nn.InstanceNorm(epsilon="x"), TypeError, "InstanceNorm: epsilon is a number, not 'x'"),  # type: ignore[arg-type]
    (lambda: nn.LeakyReLU(-1), AssertionError, "LeakyReLU: alpha must be finite and at least 0, not -1"),
    (lambda: nn.ELU(INF), ValueError, "ELU: alpha must be finite, not inf"),
    (lambda: nn.PReLU(in_channels=0), ValueError, "PReLU: in_channels is a whole number from 1 on, not 0"),
    (lambda: nn.Dropout(2), ValueError, "Dropout: rate must be from 0 to 1, not 2"),
    (lambda: nn.Dropout(None), TypeError, "Dropout: rate is a number, not None"),  # type: ignore[arg-type]
    (lambda: nn.Dense(2, in_units=-5), ValueError, "Dense: in_units is a whole number from -1 on, not -5"),
    (lambda: nn.Conv2D(3, 3, groups=2), mx.MXNetError, "Conv2D: 3 channels do not divide into 2 groups"),
    (lambda: nn.Conv2D(4, 3, groups=2, in_channels=5), mx.MXNetError, "Conv2D: 5 in_channels do not divide into 2 gr"),
    (lambda: nn.ReflectionPad2D(-1), ValueError, "ReflectionPad2D: padding is a whole number from 0 on, not -1"),
    (lambda: contrib_cnn.DeformableConvolution(4, groups=0), ValueError, "groups is a whole number from 1 on, not 0"),
    (lambda: rnn.LSTM(0), ValueError, "LSTM: hidden_size is a whole number from 1 on, not 0"),
    (lambda: rnn.GRU(3, 0), ValueError, "GRU: num_layers is a whole number from 1 on, not 0"),
    (lambda: rnn.LSTM(3, dropout=1), ValueError, "LSTM: dropout must be from 0 to below 1, not 1"),
    (lambda: rnn.DropoutCell(3), ValueError, "DropoutCell: rate must be from 0 to 1, not 3"),
    (lambda: rnn.ZoneoutCell(rnn.GRUCell(2), 3), ValueError, "ZoneoutCell: zoneout_outputs must be from 0 to 1, not 3"),
    (lambda: contrib_rnn.VariationalDropoutCell(rnn.GRUCell(2), 2), ValueError, "drop_inputs must be from 0 to 1"),
    (lambda: contrib_rnn.Conv1DLSTMCell((1,), 2, 3, 3), ValueError, r"input_shape is \(C, W\), not \(1,\)"),
    (lambda: loss.L2Loss(weight=INF), ValueError, "L2Loss: weight must be finite, not inf"),
    (lambda: loss.HuberLoss(rho=-1), ValueError, "HuberLoss: rho must be finite and above 0, not -1"),
    (lambda: loss.SDMLLoss(1.5), ValueError, "SDMLLoss: smoothing_parameter must be from 0 to 1, not 1.5"),
    (lambda: init.Normal(-1), ValueError, "Normal: sigma must be finite and at least 0, not -1"),
    (lambda: init.Uniform(-1), ValueError, "Uniform: scale must be finite and at least 0, not -1"),
    (lambda: init.create("xavier", magnitude=-1), ValueError, "Xavier: magnitude must be finite and at least 0"),
    (lambda: init.Xavier(rnd_type="x"), ValueError, "Xavier: rnd_type is 'uniform' or 'gaussian', not 'x'"),
    (
        lambda: gluon.utils.clip_global_norm([X], NAN),
        ValueError,
        "clip_global_norm: max_norm must be at least 0",
    ),
    (
        lambda: gluon.utils.clip_global_norm([X], -1),
        ValueError,
        "max_norm must be at least 0, not -1",
    ),
    (lambda: gluon.utils.split_and_load(nd.ones((3,)), [mx.cpu(0), mx.cpu(1)]), ValueError, "3 samples do not divide"),
    (lambda: data.DataLoader([1, 2], 0), ValueError, "DataLoader: batch_size must be a whole number of at least 1"),
    (lambda: data.DataLoader([1, 2], 1, num_workers=-1), ValueError, "num_workers is a whole number from 0 on, not -1"),
    (lambda: data.BatchSampler(range(3), 0), ValueError, "BatchSampler: batch_size must be a whole number of at le"),
    (lambda: transforms.RandomFlipLeftRight(2), ValueError, "RandomFlipLeftRight: p must be from 0 to 1, not 2"),
    (lambda: transforms.RandomHue(-1), ValueError, "RandomHue: hue must be finite and at least 0, not -1"),
    (lambda: transforms.Normalize(0, (1, 0, 1)), ValueError, "Normalize: std must be finite and above 0, not 0"),
    (lambda: transforms.CenterCrop(0), ValueError, "CenterCrop: size is a whole number from 1 on, not 0"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_is_refused(number: int) -> None:
    call, error, message = REFUSED[number]
    with pytest.raises(error, match=message) as caught:
        call()
    assert f"{HERE}:{call.__code__.co_firstlineno}" in str(caught.value)


def test_what_was_refused_has_changed_nothing() -> None:
    """Of the cell that a modifier was to own, too: it can be used, and modified, after."""
    cell = rnn.GRUCell(2)
    with pytest.raises(ValueError, match="zoneout_states"):
        rnn.ZoneoutCell(cell, zoneout_states=2)
    assert rnn.ZoneoutCell(cell, zoneout_states=1).base_cell is cell
    x = nd.ones((2,))
    with pytest.raises(ValueError, match="max_norm"):
        gluon.utils.clip_global_norm([x], NAN)
    assert x.asnumpy().tolist() == [1, 1]


GOES: list[Callable[[], Any]] = [
    *(lambda m=m: nn.BatchNorm(momentum=m, epsilon=0) for m in (0, 1, np.float32(0.5), np.array(0.5), Decimal("0.5"))),  # type: ignore[misc]
    *(lambda r=r: nn.Dropout(r) for r in (0, 1, np.float64(0.5), True)),  # type: ignore[misc]
    lambda: nn.Dense(2, in_units=-1),
    lambda: nn.Dense(np.int64(2), in_units=np.int32(3)),
    lambda: nn.ELU(-1),
    lambda: nn.ELU(nd.array([0.5])),
    lambda: nn.Swish(-1),
    lambda: nn.LeakyReLU(0),
    lambda: nn.Conv2D(4, 3, groups=2, in_channels=-1),
    lambda: rnn.LSTM(3, projection_size=0, state_clip_min=-INF, state_clip_max=INF),
    lambda: rnn.ZoneoutCell(rnn.GRUCell(2), 0, 1),
    lambda: loss.L2Loss(weight=-1),
    lambda: loss.L2Loss(weight=np.float32(2)),
    lambda: loss.TripletLoss(margin=-1),
    lambda: init.Normal(0),
    lambda: init.Uniform(0),
    lambda: init.Orthogonal(-1),
    lambda: init.Constant(NAN),
    lambda: init.Constant(-INF),
    lambda: gluon.utils.clip_global_norm([nd.ones((2,))], INF),
    lambda: gluon.utils.clip_global_norm([nd.ones((2,))], nd.array([1.0])),  # type: ignore[arg-type]
    lambda: data.DataLoader([1, 2], 2.0, prefetch=0),  # type: ignore[arg-type]
    lambda: transforms.Normalize([0, 0, 0], np.ones(3)),  # type: ignore[arg-type]
    lambda: transforms.RandomResizedCrop([2, 3], scale=0.5),  # type: ignore[arg-type]
    lambda: batchify.Pad(val=NAN),
]


@pytest.mark.parametrize("number", range(len(GOES)))
def test_goes_on_working(number: int) -> None:
    GOES[number]()


@pytest.mark.parametrize(
    ("allowed", "text", "inside", "outside"),
    [
        (NUMBER, "a number", [-INF, 0, INF], [NAN]),
        (FINITE, "finite", [-1e300, 0], [INF, -INF, NAN]),
        (NOT_NEGATIVE, "finite and at least 0", [0, 1], [-1, INF, NAN]),
        (POSITIVE, "finite and above 0", [1e-300], [0, INF, NAN]),
        (Range(0, 1, below=True), "from 0 to below 1", [0, 0.5], [1, -1, NAN]),
        (Range(-1, 1), "from -1 to 1", [-1, 1], [1.1, NAN]),
        (Range(0, INF, infinite=True), "at least 0", [0, INF], [-1, -INF, NAN]),
    ],
)
def test_ranges(allowed: Range, text: str, inside: list[float], outside: list[float]) -> None:
    assert str(allowed) == text
    assert all(value in allowed for value in inside) and not any(value in allowed for value in outside)
    with pytest.raises(ValueError, match=rf"^f: x must be {text}, not {outside[0]:g}\n"):
        check_range("f", "x", outside[0], allowed)
