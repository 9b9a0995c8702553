"""Free axes have the names of the Dims in dynamic_shapes, in whatever structure they stand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import gluongraph as mx
from gluongraph import nd

torch = pytest.importorskip("torch")
nn, Dim = torch.nn, torch.export.Dim
BATCH, LENGTH = Dim("batch", max=64), Dim("length", min=2, max=32)
X, Y = torch.ones(4, 3), torch.ones(6)


class Many(nn.Module):
    """Arguments of all kinds."""

    def forward(self, d: Any, y: Any, *rest: Any, scale: Any = None) -> Any:
        more = [*rest, *([] if scale is None else [scale])]
        return d["x"] + y.sum() + sum(r.sum() for r in more)


@dataclasses.dataclass
class Pair:
    """Two arrays as one argument."""

    a: Any
    b: Any


torch.export.register_dataclass(Pair, serialized_type_name="test_dimension_names.Pair")


def shapes_by_tensor() -> Any:
    found = torch.export.ShapesCollection()
    found[X], found[Y] = (BATCH, None), {0: LENGTH}
    return found


@pytest.mark.parametrize(
    "args, kwargs, shapes, wanted",
    [
        (({"x": X}, Y), {}, ({"x": {0: BATCH}}, {0: LENGTH}), ["batch,3", "length"]),
        (({"x": X}, Y), {}, {"y": (LENGTH,), "d": {"x": (BATCH, None)}}, ["batch,3", "length"]),
        (
            ({"x": X}, Y, Y + 1),
            {},
            {"d": {"x": None}, "y": {0: LENGTH}, "rest": ({0: LENGTH},)},
            ["4,3", "length", "length"],
        ),
        (({"x": X}, Y), {"scale": Y + 1}, {"d": {"x": None}, "y": None, "scale": {0: LENGTH}}, ["4,3", "6", "length"]),
        (({"x": X}, torch.ones(8)), {}, ({"x": {0: BATCH}}, {0: 2 * BATCH}), ["batch,3", "2*batch"]),
        (({"x": X}, Y), {}, None, ["4,3", "6"]),
    ],
    ids=["positions", "names", "further arguments", "keywords", "computed", "none"],
)
def test_names(args: Any, kwargs: Any, shapes: Any, wanted: list[str]) -> None:
    net = mx.from_torch(Many(), args, kwargs, dynamic_shapes=shapes)
    assert [text.split("[")[1].rstrip("]") for text in net.inputs] == wanted


def test_shapes_by_tensor() -> None:
    net = mx.from_torch(Many(), ({"x": X}, Y), dynamic_shapes=shapes_by_tensor())
    assert net.free_axes.ranges == {"batch": (0, 64), "length": (2, 32)}


def test_dataclasses() -> None:
    def total(pair: Any) -> Any:
        return pair.a + pair.b.sum()

    net = mx.from_torch(total, (Pair(X, Y),), dynamic_shapes=([{0: BATCH}, {0: LENGTH}],))
    assert net.free_axes.inputs == ({0: "batch"}, {0: "length"})


def test_axes_that_torch_chooses_have_its_symbols() -> None:
    net = mx.from_torch(Many(), ({"x": X}, Y), dynamic_shapes=({"x": {0: Dim.AUTO}}, {0: LENGTH}))
    (first,) = net.free_axes.inputs[0].values()
    assert first.startswith("s") and first[1:].isdigit()


def test_a_name_for_two_axes_is_none() -> None:
    """One tensor as both arguments tells not which of two names is whose."""
    net = mx.from_torch(lambda a, b: a.sum() + b.sum(), (Y, Y), dynamic_shapes=({0: BATCH}, {0: LENGTH}))
    assert len(net.free_axes.ranges) == 2


def test_sizes_by_name() -> None:
    """They are those of `sizes=`, and errors say them."""
    net = mx.from_torch(lambda a, b: a + b.sum(), (X, Y), dynamic_shapes=({0: BATCH}, {0: LENGTH}))
    step = mx.compile(net, trainer=None, dynamic=True, sizes={"batch": [8, 64], "length": "exact"})
    for rows, length in ((3, 5), (8, 5), (9, 7)):
        assert step.predict(nd.ones((rows, 3)), nd.ones(length)).shape == (rows, 3)
    assert step.dynamic.sizes == {"batch": (8, 64)}
    with pytest.raises(mx.errors.ShapeError, match="batch lies between 0 and 64"):
        net(nd.ones((65, 3)), nd.ones(4))
