"""Gradients that are ops of their own: a training step has them, a prediction does not."""

from __future__ import annotations

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Node
from gluongraph.onnx.export.rules.nn import widened, window
from gluongraph.onnx.export.rules.terms import Made, Sizes, Source, ints, term
from gluongraph.onnx.export.rules.view import View, rule

SWAPPED = (1, 0, 2, 3)  # images and channels


@rule("conv2d_weight_grad")
def weight_grad(view: View, n: Node) -> Made | None:
    """A convolution of the images by the gradients, which are as large as what strides leave of them.

    What was the batch is summed over, and what was a stride is a dilation; a window that strides did not reach is cut.
    """
    (x, g), how = n.src, n.attrs
    images, gradients = widened(n)
    count, channels, height, width = x.shape
    if (groups := how["groups"]) > 1:
        apart = term("Reshape", images, Sizes((count, groups, channels // groups, height, width)))
        turned = term("Transpose", apart, perm=(2, 1, 0, 3, 4))
        images = term("Reshape", turned, Sizes((channels // groups, groups * count, height, width)))
    else:
        images = term("Transpose", images, perm=SWAPPED)
    turned = term("Transpose", gradients, perm=SWAPPED)
    settings = {"kernel_shape": g.shape[2:], "strides": how["dilation"], "dilations": how["stride"], "group": groups}
    made = term("Conv", images, turned, pads=(*how["padding"], *how["padding"]), **settings)
    cut = term("Slice", made, ints(0, 0), ints(*n.shape[2:]), ints(2, 3))
    return term("Transpose", cut, perm=SWAPPED)


@rule("max_pool2d_grad")
def max_pool_grad(view: View, n: Node) -> Made | None:
    """The gradients, added where MaxPool has found the largest elements."""
    x, _, g = n.src
    places = term("MaxPool", x, **window(n.attrs, x.shape, g.shape)).of(1)
    zeros: Source = term("Expand", np.zeros(1, numpy_dtype(n.dtype)), ints(n.ty.size))
    added = term("ScatterElements", zeros, _flat(places), _flat(g), axis=0, reduction="add")
    return term("Reshape", added, Sizes(n.shape))


def _flat(source: Source) -> Source:
    return term("Reshape", source, ints(-1))
