"""Examples of the functions of `nd`, which their docstrings end with: module -> function -> session of Python.

They stand here, not with the formulas, since most functions are builders of `gluongraph.mxops`, which take nodes and
whose docstrings tell formulas. A function of several names is here once. `tests/test_docstrings.py` runs all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluongraph.nd.families import FAMILIES
from gluongraph.nd.function import extended

FIRST = ">>> from gluongraph import nd"


def document(module: str, names: Mapping[str, Any]) -> None:
    """Complete the docstrings of a module's functions by what their family has in common, and by their examples.

    >>> from gluongraph import nd
    >>> print(nd.relu.__doc__.splitlines()[-1])
    array([0., 2.], dtype=float32)
    """
    for paragraph, family in FAMILIES.get(module, {}).items():
        for name in family:
            names[name].__doc__ = extended(names[name].__doc__, paragraph)
    for name, session in EXAMPLES[module].items():
        function = names[name]
        function.__doc__ = extended(function.__doc__, FIRST + session)


EXAMPLES: dict[str, dict[str, str]] = {
    "gluongraph.nd": {
        "array": """
>>> nd.array([[1, 2], [3, 4]]).asnumpy()
array([[1., 2.],
       [3., 4.]], dtype=float32)
>>> nd.array([1, 2], dtype="int32").dtype
<class 'numpy.int32'>
""",
        "full": """
>>> nd.full((2, 2), 7).asnumpy()
array([[7., 7.],
       [7., 7.]], dtype=float32)
""",
        "zeros": """
>>> nd.zeros((2, 3)).asnumpy()
array([[0., 0., 0.],
       [0., 0., 0.]], dtype=float32)
""",
        "ones": """
>>> nd.ones((2, 3), dtype="int32").asnumpy()
array([[1, 1, 1],
       [1, 1, 1]], dtype=int32)
""",
        "empty": """
>>> nd.empty((2, 3)).shape
(2, 3)
""",
        "arange": """
>>> nd.arange(2, 6, 2, repeat=2).asnumpy()
array([2., 2., 4., 4.], dtype=float32)
""",
        "linspace": """
>>> nd.linspace(0, 1, 5).asnumpy()
array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
""",
        "eye": """
>>> nd.eye(2, 3, k=1).asnumpy()
array([[0., 1., 0.],
       [0., 0., 1.]], dtype=float32)
""",
        "from_numpy": """
>>> import numpy as np
>>> nd.from_numpy(np.arange(3)).dtype
<class 'numpy.int64'>
""",
        "from_dlpack": """
>>> import numpy as np
>>> nd.from_dlpack(np.ones(3, "float32")).asnumpy()
array([1., 1., 1.], dtype=float32)
""",
        "waitall": """
>>> nd.waitall()
""",
        "to_dlpack_for_read": """
>>> nd.from_dlpack(nd.to_dlpack_for_read(nd.array([1, 2]))).asnumpy()
array([1., 2.], dtype=float32)
""",
        "to_dlpack_for_write": """
>>> x = nd.zeros(2)
>>> nd.from_dlpack(nd.to_dlpack_for_write(x))[:] = 1
>>> x.asnumpy()
array([1., 1.], dtype=float32)
""",
        "cast": """
>>> nd.cast(nd.array([1.7, -1.7]), "int32").asnumpy()
array([ 1, -1], dtype=int32)
""",
        "concat": """
>>> nd.concat(nd.array([[1]]), nd.array([[2]]), dim=1).asnumpy()
array([[1., 2.]], dtype=float32)
""",
        "concatenate": """
>>> nd.concatenate([nd.array([1, 2]), nd.array([3])]).asnumpy()
array([1., 2., 3.], dtype=float32)
""",
        "stack": """
>>> nd.stack(nd.array([1, 2]), nd.array([3, 4])).asnumpy()
array([[1., 2.],
       [3., 4.]], dtype=float32)
""",
        "add_n": """
>>> nd.add_n(nd.array([1, 2]), nd.array([3, 4]), nd.array([5, 6])).asnumpy()
array([ 9., 12.], dtype=float32)
""",
        "Dropout": """
>>> nd.Dropout(nd.array([1, 2]), p=0.5).asnumpy()
array([1., 2.], dtype=float32)
>>> nd.Dropout(nd.array([1, 2]), p=1, mode="always").asnumpy()
array([0., 0.], dtype=float32)
""",
        "LeakyReLU": """
>>> nd.LeakyReLU(nd.array([-4, 4]), act_type="leaky", slope=0.25).asnumpy()
array([-1.,  4.], dtype=float32)
""",
        "BatchNorm": """
>>> x = nd.array([[1, 2], [3, 6]])
>>> gamma, beta = nd.ones(2), nd.zeros(2)
>>> mean, var = nd.zeros(2), nd.ones(2)
>>> nd.BatchNorm(x, gamma, beta, mean, var, eps=0).asnumpy()
array([[1., 2.],
       [3., 6.]], dtype=float32)
""",
        "add": """
>>> nd.add(nd.array([1, 2]), nd.array([3, 4])).asnumpy()
array([4., 6.], dtype=float32)
""",
        "subtract": """
>>> nd.subtract(nd.array([1, 2]), nd.array([3, 5])).asnumpy()
array([-2., -3.], dtype=float32)
""",
        "multiply": """
>>> nd.multiply(nd.array([1, 2]), nd.array([3, 4])).asnumpy()
array([3., 8.], dtype=float32)
""",
        "divide": """
>>> nd.divide(nd.array([1, 2]), nd.array([2, 4])).asnumpy()
array([0.5, 0.5], dtype=float32)
>>> nd.divide(nd.array([-7], dtype="int32"), 2).asnumpy()
array([-3], dtype=int32)
""",
        "modulo": """
>>> nd.modulo(nd.array([-5, 5]), 3).asnumpy()
array([1., 2.], dtype=float32)
""",
        "power": """
>>> nd.power(nd.array([2, 3]), 2).asnumpy()
array([4., 9.], dtype=float32)
""",
        "maximum": """
>>> nd.maximum(nd.array([1, 4]), nd.array([3, 2])).asnumpy()
array([3., 4.], dtype=float32)
""",
        "minimum": """
>>> nd.minimum(nd.array([1, 4]), nd.array([3, 2])).asnumpy()
array([1., 2.], dtype=float32)
""",
        "equal": """
>>> nd.equal(nd.array([1, 2]), nd.array([1, 3])).asnumpy()
array([1., 0.], dtype=float32)
""",
        "not_equal": """
>>> nd.not_equal(nd.array([1, 2]), nd.array([1, 3])).asnumpy()
array([0., 1.], dtype=float32)
""",
        "lesser": """
>>> nd.lesser(nd.array([1, 2]), 2).asnumpy()
array([1., 0.], dtype=float32)
""",
        "lesser_equal": """
>>> nd.lesser_equal(nd.array([1, 2, 3]), 2).asnumpy()
array([1., 1., 0.], dtype=float32)
""",
        "greater": """
>>> nd.greater(nd.array([1, 2, 3]), 2).asnumpy()
array([0., 0., 1.], dtype=float32)
""",
        "greater_equal": """
>>> nd.greater_equal(nd.array([1, 2, 3]), 2).asnumpy()
array([0., 1., 1.], dtype=float32)
""",
        "logical_and": """
>>> nd.logical_and(nd.array([0, 2, 3]), nd.array([1, 0, 5])).asnumpy()
array([0., 0., 1.], dtype=float32)
""",
        "logical_or": """
>>> nd.logical_or(nd.array([0, 2, 0]), nd.array([1, 0, 0])).asnumpy()
array([1., 1., 0.], dtype=float32)
""",
        "logical_xor": """
>>> nd.logical_xor(nd.array([0, 2, 3]), nd.array([1, 0, 5])).asnumpy()
array([1., 1., 0.], dtype=float32)
""",
        "logical_not": """
>>> nd.logical_not(nd.array([0, 2])).asnumpy()
array([1., 0.], dtype=float32)
""",
        "broadcast_hypot": """
>>> nd.broadcast_hypot(nd.array([3, 5]), nd.array([4, 12])).asnumpy()
array([ 5., 13.], dtype=float32)
""",
        "negative": """
>>> nd.negative(nd.array([1, -2])).asnumpy()
array([-1.,  2.], dtype=float32)
""",
        "abs": """
>>> nd.abs(nd.array([1, -2])).asnumpy()
array([1., 2.], dtype=float32)
""",
        "sign": """
>>> nd.sign(nd.array([-3, 0, 2])).asnumpy()
array([-1.,  0.,  1.], dtype=float32)
""",
        "exp": """
>>> nd.exp(nd.array([0, 1])).asnumpy().round(3)
array([1.   , 2.718], dtype=float32)
""",
        "expm1": """
>>> nd.expm1(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 1.718], dtype=float32)
""",
        "log": """
>>> nd.log(nd.array([1, 10])).asnumpy().round(3)
array([0.   , 2.303], dtype=float32)
""",
        "log1p": """
>>> nd.log1p(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 0.693], dtype=float32)
""",
        "log2": """
>>> nd.log2(nd.array([1, 8])).asnumpy().round(3)
array([0., 3.], dtype=float32)
""",
        "log10": """
>>> nd.log10(nd.array([1, 100])).asnumpy().round(3)
array([0., 2.], dtype=float32)
""",
        "sqrt": """
>>> nd.sqrt(nd.array([4, 9])).asnumpy()
array([2., 3.], dtype=float32)
""",
        "rsqrt": """
>>> nd.rsqrt(nd.array([4, 16])).asnumpy().round(3)
array([0.5 , 0.25], dtype=float32)
""",
        "square": """
>>> nd.square(nd.array([2, -3])).asnumpy()
array([4., 9.], dtype=float32)
""",
        "reciprocal": """
>>> nd.reciprocal(nd.array([2, 4])).asnumpy()
array([0.5 , 0.25], dtype=float32)
""",
        "sin": """
>>> nd.sin(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 0.841], dtype=float32)
""",
        "cos": """
>>> nd.cos(nd.array([0, 1])).asnumpy().round(3)
array([1.  , 0.54], dtype=float32)
""",
        "tan": """
>>> nd.tan(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 1.557], dtype=float32)
""",
        "arcsin": """
>>> nd.arcsin(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 1.571], dtype=float32)
""",
        "arccos": """
>>> nd.arccos(nd.array([1, -1])).asnumpy().round(3)
array([0.   , 3.142], dtype=float32)
""",
        "arctan": """
>>> nd.arctan(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 0.785], dtype=float32)
""",
        "degrees": """
>>> nd.degrees(nd.array([3.14159265])).asnumpy().round(3)
array([180.], dtype=float32)
""",
        "radians": """
>>> nd.radians(nd.array([180])).asnumpy().round(3)
array([3.142], dtype=float32)
""",
        "sinh": """
>>> nd.sinh(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 1.175], dtype=float32)
""",
        "cosh": """
>>> nd.cosh(nd.array([0, 1])).asnumpy().round(3)
array([1.   , 1.543], dtype=float32)
""",
        "tanh": """
>>> nd.tanh(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 0.762], dtype=float32)
""",
        "arcsinh": """
>>> nd.arcsinh(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 0.881], dtype=float32)
""",
        "arccosh": """
>>> nd.arccosh(nd.array([1, 2])).asnumpy().round(3)
array([0.   , 1.317], dtype=float32)
""",
        "arctanh": """
>>> nd.arctanh(nd.array([0, 0.5])).asnumpy().round(3)
array([0.   , 0.549], dtype=float32)
""",
        "cbrt": """
>>> nd.cbrt(nd.array([8, 27])).asnumpy().round(3)
array([2., 3.], dtype=float32)
""",
        "rcbrt": """
>>> nd.rcbrt(nd.array([8, 1])).asnumpy().round(3)
array([0.5, 1. ], dtype=float32)
""",
        "gamma": """
>>> nd.gamma(nd.array([1, 4, 5])).asnumpy().round(3)
array([ 1.,  6., 24.], dtype=float32)
""",
        "gammaln": """
>>> nd.gammaln(nd.array([1, 5])).asnumpy().round(3)
array([0.   , 3.178], dtype=float32)
""",
        "erf": """
>>> nd.erf(nd.array([0, 1])).asnumpy().round(3)
array([0.   , 0.843], dtype=float32)
""",
        "erfinv": """
>>> nd.erfinv(nd.array([0, 0.5])).asnumpy().round(3)
array([0.   , 0.477], dtype=float32)
""",
        "hard_sigmoid": """
>>> nd.hard_sigmoid(nd.array([-3, 0, 1])).asnumpy().round(3)
array([0. , 0.5, 0.7], dtype=float32)
""",
        "smooth_l1": """
>>> nd.smooth_l1(nd.array([0.5, 2])).asnumpy()
array([0.125, 1.5  ], dtype=float32)
""",
        "sigmoid": """
>>> nd.sigmoid(nd.array([0, 2])).asnumpy().round(3)
array([0.5  , 0.881], dtype=float32)
""",
        "relu": """
>>> nd.relu(nd.array([-1, 2])).asnumpy()
array([0., 2.], dtype=float32)
""",
        "softsign": """
>>> nd.softsign(nd.array([-1, 3])).asnumpy()
array([-0.5 ,  0.75], dtype=float32)
""",
        "softrelu": """
>>> nd.softrelu(nd.array([0, 1])).asnumpy().round(3)
array([0.693, 1.313], dtype=float32)
""",
        "floor": """
>>> nd.floor(nd.array([1.7, -1.2])).asnumpy()
array([ 1., -2.], dtype=float32)
""",
        "ceil": """
>>> nd.ceil(nd.array([1.2, 2])).asnumpy()
array([2., 2.], dtype=float32)
""",
        "round": """
>>> nd.round(nd.array([1.5, 2.5, -2.5])).asnumpy()
array([ 2.,  3., -3.], dtype=float32)
""",
        "rint": """
>>> nd.rint(nd.array([1.5, 2.5, 2.6])).asnumpy()
array([1., 2., 3.], dtype=float32)
""",
        "trunc": """
>>> nd.trunc(nd.array([1.7, -2.7])).asnumpy()
array([ 1., -2.], dtype=float32)
""",
        "clip": """
>>> nd.clip(nd.array([-1, 2, 9]), 0, 5).asnumpy()
array([0., 2., 5.], dtype=float32)
""",
        "where": """
>>> nd.where(nd.array([1, 0]), nd.array([1, 2]), nd.array([3, 4])).asnumpy()
array([1., 4.], dtype=float32)
""",
        "zeros_like": """
>>> nd.zeros_like(nd.array([1, 2])).asnumpy()
array([0., 0.], dtype=float32)
""",
        "ones_like": """
>>> nd.ones_like(nd.array([1, 2])).asnumpy()
array([1., 1.], dtype=float32)
""",
        "full_like": """
>>> nd.full_like(nd.array([1, 2]), 5).asnumpy()
array([5., 5.], dtype=float32)
""",
        "identity": """
>>> nd.identity(nd.array([1, 2])).asnumpy()
array([1., 2.], dtype=float32)
""",
        "BlockGrad": """
>>> from gluongraph import autograd
>>> x = nd.array([1, 2])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.BlockGrad(x) * x
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([1., 4.], dtype=float32), array([1., 2.], dtype=float32))
""",
        "shape_array": """
>>> nd.shape_array(nd.zeros((2, 3))).asnumpy()
array([2, 3])
""",
        "size_array": """
>>> nd.size_array(nd.zeros((2, 3))).asnumpy()
array([6])
""",
        "sum": """
>>> nd.sum(nd.array([[1, 2], [3, 4]]), axis=1).asnumpy()
array([3., 7.], dtype=float32)
""",
        "mean": """
>>> nd.mean(nd.array([[1, 2], [3, 4]]), axis=0).asnumpy()
array([2., 3.], dtype=float32)
""",
        "prod": """
>>> nd.prod(nd.array([[1, 2], [3, 4]]), axis=1).asnumpy()
array([ 2., 12.], dtype=float32)
""",
        "max": """
>>> nd.max(nd.array([[1, 2], [3, 4]]), axis=0).asnumpy()
array([3., 4.], dtype=float32)
""",
        "min": """
>>> nd.min(nd.array([[1, 2], [3, 4]]), axis=1, keepdims=True).asnumpy()
array([[1.],
       [3.]], dtype=float32)
""",
        "norm": """
>>> nd.norm(nd.array([[3, 4], [6, 8]]), axis=1).asnumpy()
array([ 5., 10.], dtype=float32)
""",
        "argmax": """
>>> nd.argmax(nd.array([[1, 3, 2], [9, 8, 7]]), axis=1).asnumpy()
array([1., 0.], dtype=float32)
""",
        "argmin": """
>>> nd.argmin(nd.array([[1, 3, 2], [9, 8, 7]]), axis=1).asnumpy()
array([0., 2.], dtype=float32)
""",
        "argmax_channel": """
>>> nd.argmax_channel(nd.array([[1, 3, 2], [9, 8, 7]])).asnumpy()
array([1., 0.], dtype=float32)
""",
        "cumsum": """
>>> nd.cumsum(nd.array([1, 2, 3])).asnumpy()
array([1., 3., 6.], dtype=float32)
""",
        "nansum": """
>>> nd.nansum(nd.array([1, float("nan"), 3]), axis=0).asnumpy()
array([4.], dtype=float32)
""",
        "nanprod": """
>>> nd.nanprod(nd.array([2, float("nan"), 3]), axis=0).asnumpy()
array([6.], dtype=float32)
""",
        "moments": """
>>> mean, var = nd.moments(nd.array([1, 2, 3, 6]), axes=0)
>>> mean.asnumpy(), var.asnumpy()
(array([3.], dtype=float32), array([3.5], dtype=float32))
""",
        "all_finite": """
>>> nd.all_finite(nd.array([1, float("inf")])).asnumpy()
array([0.], dtype=float32)
""",
        "multi_all_finite": """
>>> nd.multi_all_finite(nd.array([1]), nd.array([2, 3]), num_arrays=2).asnumpy()
array([1.], dtype=float32)
""",
        "multi_sum_sq": """
>>> nd.multi_sum_sq(nd.array([1, 2]), nd.array([3]), num_arrays=2).asnumpy()
array([5., 9.], dtype=float32)
""",
        "argsort": """
>>> nd.argsort(nd.array([3, 1, 2])).asnumpy()
array([1., 2., 0.], dtype=float32)
""",
        "sort": """
>>> nd.sort(nd.array([3, 1, 2]), is_ascend=False).asnumpy()
array([3., 2., 1.], dtype=float32)
""",
        "topk": """
>>> nd.topk(nd.array([3, 1, 2]), k=2).asnumpy()
array([0., 2.], dtype=float32)
>>> nd.topk(nd.array([3, 1, 2]), k=2, ret_typ="value").asnumpy()
array([3., 2.], dtype=float32)
""",
        "reshape": """
>>> nd.reshape(nd.zeros((2, 3, 4)), (0, -1)).shape
(2, 12)
>>> nd.reshape(nd.zeros((2, 3, 4)), (-3, -2)).shape
(6, 4)
""",
        "reshape_like": """
>>> nd.reshape_like(nd.zeros((2, 6)), nd.zeros((3, 4))).shape
(3, 4)
""",
        "flatten": """
>>> nd.flatten(nd.zeros((2, 3, 4))).shape
(2, 12)
""",
        "expand_dims": """
>>> nd.expand_dims(nd.zeros((2, 3)), 1).shape
(2, 1, 3)
""",
        "squeeze": """
>>> nd.squeeze(nd.zeros((1, 2, 1))).shape
(2,)
""",
        "transpose": """
>>> nd.transpose(nd.zeros((2, 3, 4)), (1, 0, 2)).shape
(3, 2, 4)
""",
        "swapaxes": """
>>> nd.swapaxes(nd.zeros((2, 3, 4)), 0, 2).shape
(4, 3, 2)
""",
        "broadcast_to": """
>>> nd.broadcast_to(nd.array([[1], [2]]), (2, 3)).asnumpy()
array([[1., 1., 1.],
       [2., 2., 2.]], dtype=float32)
""",
        "broadcast_like": """
>>> nd.broadcast_like(nd.array([[1], [2]]), nd.zeros((2, 3))).asnumpy()
array([[1., 1., 1.],
       [2., 2., 2.]], dtype=float32)
""",
        "broadcast_axis": """
>>> nd.broadcast_axis(nd.array([[1], [2]]), axis=1, size=3).asnumpy()
array([[1., 1., 1.],
       [2., 2., 2.]], dtype=float32)
""",
        "tile": """
>>> nd.tile(nd.array([1, 2]), (2, 2)).asnumpy()
array([[1., 2., 1., 2.],
       [1., 2., 1., 2.]], dtype=float32)
""",
        "repeat": """
>>> nd.repeat(nd.array([1, 2]), 2).asnumpy()
array([1., 1., 2., 2.], dtype=float32)
""",
        "flip": """
>>> nd.flip(nd.array([[1, 2], [3, 4]]), axis=1).asnumpy()
array([[2., 1.],
       [4., 3.]], dtype=float32)
""",
        "slice": """
>>> nd.slice(nd.array([[1, 2, 3], [4, 5, 6]]), begin=(0, 1), end=(2, 3)).asnumpy()
array([[2., 3.],
       [5., 6.]], dtype=float32)
""",
        "slice_axis": """
>>> nd.slice_axis(nd.array([[1, 2, 3], [4, 5, 6]]), axis=1, begin=0, end=2).asnumpy()
array([[1., 2.],
       [4., 5.]], dtype=float32)
""",
        "slice_like": """
>>> nd.slice_like(nd.array([[1, 2, 3], [4, 5, 6]]), nd.zeros((1, 2))).asnumpy()
array([[1., 2.]], dtype=float32)
""",
        "split": """
>>> [part.shape for part in nd.split(nd.zeros((2, 6)), num_outputs=3, axis=1)]
[(2, 2), (2, 2), (2, 2)]
""",
        "split_v2": """
>>> [part.asnumpy() for part in nd.split_v2(nd.array([1, 2, 3]), (1,))]
[array([1.], dtype=float32), array([2., 3.], dtype=float32)]
""",
        "moveaxis": """
>>> nd.moveaxis(nd.zeros((2, 3, 4)), 0, 2).shape
(3, 4, 2)
""",
        "depth_to_space": """
>>> nd.depth_to_space(nd.zeros((1, 8, 2, 3)), 2).shape
(1, 2, 4, 6)
""",
        "space_to_depth": """
>>> nd.space_to_depth(nd.zeros((1, 2, 4, 6)), 2).shape
(1, 8, 2, 3)
""",
        "diag": """
>>> nd.diag(nd.array([[1, 2], [3, 4]])).asnumpy()
array([1., 4.], dtype=float32)
>>> nd.diag(nd.array([1, 2])).asnumpy()
array([[1., 0.],
       [0., 2.]], dtype=float32)
""",
        "khatri_rao": """
>>> nd.khatri_rao(nd.array([[1, 2], [3, 4]]), nd.array([[1, 10]])).asnumpy()
array([[ 1., 20.],
       [ 3., 40.]], dtype=float32)
""",
        "take": """
>>> nd.take(nd.array([[1, 2], [3, 4], [5, 6]]), nd.array([2, 0])).asnumpy()
array([[5., 6.],
       [1., 2.]], dtype=float32)
""",
        "pick": """
>>> nd.pick(nd.array([[1, 2], [3, 4]]), nd.array([1, 0])).asnumpy()
array([2., 3.], dtype=float32)
""",
        "batch_take": """
>>> nd.batch_take(nd.array([[1, 2], [3, 4]]), nd.array([1, 0], dtype="int32")).asnumpy()
array([2., 3.], dtype=float32)
""",
        "Correlation": """
>>> nd.Correlation(nd.ones((1, 2, 4, 4)), nd.ones((1, 2, 4, 4)), max_displacement=1, pad_size=1).shape
(1, 9, 4, 4)
""",
        "gather_nd": """
>>> nd.gather_nd(nd.array([[1, 2], [3, 4]]), nd.array([[0, 1], [1, 0]])).asnumpy()
array([2., 3.], dtype=float32)
""",
        "scatter_nd": """
>>> nd.scatter_nd(nd.array([5, 6]), nd.array([[0, 1], [1, 0]]), (2, 2)).asnumpy()
array([[0., 5.],
       [6., 0.]], dtype=float32)
""",
        "ravel_multi_index": """
>>> nd.ravel_multi_index(nd.array([[1, 0], [2, 1]]), (2, 3)).asnumpy()
array([5., 1.], dtype=float32)
""",
        "unravel_index": """
>>> nd.unravel_index(nd.array([5, 1]), (2, 3)).asnumpy()
array([[1., 0.],
       [2., 1.]], dtype=float32)
""",
        "SequenceMask": """
>>> nd.SequenceMask(nd.ones((3, 2)), nd.array([1, 2]), use_sequence_length=True).asnumpy()
array([[1., 1.],
       [0., 1.],
       [0., 0.]], dtype=float32)
""",
        "SequenceLast": """
>>> nd.SequenceLast(nd.array([[1, 2], [3, 4], [5, 6]]), nd.array([1, 3]), use_sequence_length=True).asnumpy()
array([1., 6.], dtype=float32)
""",
        "SequenceReverse": """
>>> nd.SequenceReverse(nd.array([[1, 2], [3, 4], [5, 6]])).asnumpy()
array([[5., 6.],
       [3., 4.],
       [1., 2.]], dtype=float32)
""",
        "one_hot": """
>>> nd.one_hot(nd.array([0, 2]), 3).asnumpy()
array([[1., 0., 0.],
       [0., 0., 1.]], dtype=float32)
""",
        "Embedding": """
>>> nd.Embedding(nd.array([1, 0]), nd.array([[1, 2], [3, 4]]), input_dim=2, output_dim=2).asnumpy()
array([[3., 4.],
       [1., 2.]], dtype=float32)
""",
        "softmax": """
>>> nd.softmax(nd.array([[1, 1], [0, 2]])).asnumpy().round(3)
array([[0.5  , 0.5  ],
       [0.119, 0.881]], dtype=float32)
""",
        "log_softmax": """
>>> nd.log_softmax(nd.array([0, 0])).asnumpy().round(3)
array([-0.693, -0.693], dtype=float32)
""",
        "softmin": """
>>> nd.softmin(nd.array([0, 2])).asnumpy().round(3)
array([0.881, 0.119], dtype=float32)
""",
        "softmax_cross_entropy": """
>>> nd.softmax_cross_entropy(nd.array([[0, 0], [0, 2]]), nd.array([0, 1])).asnumpy().round(3)
array([0.82], dtype=float32)
""",
        "CTCLoss": """
>>> nd.CTCLoss(nd.zeros((2, 1, 3)), nd.array([[1]])).asnumpy().round(3)
array([1.099], dtype=float32)
""",
        "SoftmaxActivation": """
>>> nd.SoftmaxActivation(nd.array([[1, 1]])).asnumpy()
array([[0.5, 0.5]], dtype=float32)
""",
        "dot": """
>>> nd.dot(nd.array([[1, 2], [3, 4]]), nd.array([1, 10])).asnumpy()
array([21., 43.], dtype=float32)
""",
        "batch_dot": """
>>> nd.batch_dot(nd.ones((5, 2, 3)), nd.ones((5, 3, 4))).shape
(5, 2, 4)
""",
        "matmul": """
>>> nd.matmul(nd.ones((5, 2, 3)), nd.ones((3, 4))).shape
(5, 2, 4)
""",
        "Activation": """
>>> nd.Activation(nd.array([-1, 2]), "relu").asnumpy()
array([0., 2.], dtype=float32)
""",
        "FullyConnected": """
>>> nd.FullyConnected(nd.array([[1, 2]]), nd.array([[1, 1], [1, 10]]), nd.array([0, 1]), num_hidden=2).asnumpy()
array([[ 3., 22.]], dtype=float32)
""",
        "LayerNorm": """
>>> nd.LayerNorm(nd.array([[1, 3]]), nd.ones(2), nd.zeros(2)).asnumpy().round(3)
array([[-1.,  1.]], dtype=float32)
""",
        "GroupNorm": """
>>> x = nd.array([1, 3, 10, 30]).reshape((1, 4, 1))
>>> nd.GroupNorm(x, nd.ones(2), nd.zeros(2), num_groups=2).asnumpy().round(3).ravel()
array([-1.,  1., -1.,  1.], dtype=float32)
""",
        "InstanceNorm": """
>>> nd.InstanceNorm(nd.array([[[1, 3], [10, 30]]]), nd.ones(2), nd.zeros(2), eps=1e-5).asnumpy().round(3)
array([[[-1.,  1.],
        [-1.,  1.]]], dtype=float32)
""",
        "Convolution": """
>>> x, weight = nd.ones((1, 1, 3, 3)), nd.ones((1, 1, 2, 2))
>>> nd.Convolution(x, weight, kernel=(2, 2), num_filter=1, no_bias=True).asnumpy()
array([[[[4., 4.],
         [4., 4.]]]], dtype=float32)
""",
        "Deconvolution": """
>>> x, weight = nd.ones((1, 1, 2, 2)), nd.ones((1, 1, 2, 2))
>>> nd.Deconvolution(x, weight, kernel=(2, 2), num_filter=1).asnumpy()
array([[[[1., 2., 1.],
         [2., 4., 2.],
         [1., 2., 1.]]]], dtype=float32)
""",
        "Pooling": """
>>> nd.Pooling(nd.array([[[1, 5, 2, 4]]]), kernel=(2,), stride=(2,)).asnumpy()
array([[[5., 4.]]], dtype=float32)
""",
        "UpSampling": """
>>> nd.UpSampling(nd.array([[[[1, 2]]]]), scale=2, sample_type="nearest").asnumpy()
array([[[[1., 1., 2., 2.],
         [1., 1., 2., 2.]]]], dtype=float32)
""",
        "pad": """
>>> nd.pad(nd.array([[[[1, 2]]]]), pad_width=(0, 0, 0, 0, 0, 0, 1, 1), constant_value=9).asnumpy()
array([[[[9., 1., 2., 9.]]]], dtype=float32)
""",
        "LRN": """
>>> nd.LRN(nd.ones((1, 2, 1, 1)), nsize=1, alpha=3, beta=1, knorm=1).asnumpy().ravel()
array([0.25, 0.25], dtype=float32)
""",
        "L2Normalization": """
>>> nd.L2Normalization(nd.array([[3, 4]])).asnumpy().round(3)
array([[0.6, 0.8]], dtype=float32)
""",
        "attention": """
>>> q, k, v = nd.ones((1, 2, 4, 8)), nd.ones((1, 2, 5, 8)), nd.ones((1, 2, 5, 6))
>>> nd.attention(q, k, v).shape
(1, 2, 4, 6)
""",
        "SoftmaxOutput": """
>>> from gluongraph import autograd
>>> x = nd.array([[1, 1]])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.SoftmaxOutput(x, nd.array([0]))
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([[0.5, 0.5]], dtype=float32), array([[-0.5,  0.5]], dtype=float32))
""",
        "LinearRegressionOutput": """
>>> from gluongraph import autograd
>>> x = nd.array([[1, 2]])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.LinearRegressionOutput(x, nd.array([[1, 4]]))
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([[1., 2.]], dtype=float32), array([[ 0., -1.]], dtype=float32))
""",
        "LogisticRegressionOutput": """
>>> from gluongraph import autograd
>>> x = nd.array([[0, 0]])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.LogisticRegressionOutput(x, nd.array([[1, 0]]))
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([[0.5, 0.5]], dtype=float32), array([[-0.25,  0.25]], dtype=float32))
""",
        "MAERegressionOutput": """
>>> from gluongraph import autograd
>>> x = nd.array([[1, 2]])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.MAERegressionOutput(x, nd.array([[0, 4]]))
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([[1., 2.]], dtype=float32), array([[ 0.5, -0.5]], dtype=float32))
""",
        "SVMOutput": """
>>> from gluongraph import autograd
>>> x = nd.array([[0, 2]])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.SVMOutput(x, nd.array([0]), use_linear=True)
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([[0., 2.]], dtype=float32), array([[-1.,  1.]], dtype=float32))
""",
        "MakeLoss": """
>>> from gluongraph import autograd
>>> x = nd.array([1, 2])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.MakeLoss(x, grad_scale=3)
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([1., 2.], dtype=float32), array([3., 3.], dtype=float32))
""",
        "make_loss": """
>>> from gluongraph import autograd
>>> x = nd.array([1, 2])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.make_loss(x * x)
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([1., 4.], dtype=float32), array([2., 4.], dtype=float32))
""",
        "RNN": """
>>> x, state = nd.ones((5, 2, 3)), nd.zeros((1, 2, 4))
>>> weights = nd.zeros(4 * 3 + 4 * 4 + 4 + 4)
>>> nd.RNN(x, weights, state, state_size=4, num_layers=1, mode="rnn_tanh").shape
(5, 2, 4)
""",
        "Custom": """
>>> import gluongraph as mx
>>> class Twice(mx.operator.CustomOp):
...     def forward(self, is_train, req, in_data, out_data, aux):
...         self.assign(out_data[0], req[0], 2 * in_data[0])
>>> @mx.operator.register("twice_example")
... class TwiceProp(mx.operator.CustomOpProp):
...     def create_operator(self, ctx, shapes, dtypes):
...         return Twice()
>>> nd.Custom(nd.array([1, 2]), op_type="twice_example").asnumpy()
array([2., 4.], dtype=float32)
""",
        "fill_element_0index": """
>>> nd.fill_element_0index(nd.zeros((2, 2)), nd.array([5, 6]), nd.array([1, 0])).asnumpy()
array([[0., 5.],
       [6., 0.]], dtype=float32)
""",
        "histogram": """
>>> counts, edges = nd.histogram(nd.array([1, 2, 2, 4]), bins=3, range=(1, 4))
>>> counts.asnumpy(), edges.asnumpy()
(array([1, 2, 1]), array([1., 2., 3., 4.], dtype=float32))
""",
        "save": """
>>> nd.save("x.params", {"x": nd.array([1, 2])})
>>> nd.load("x.params")["x"].asnumpy()
array([1., 2.], dtype=float32)
""",
        "load": """
>>> nd.save("x.params", [nd.array([1, 2])])
>>> nd.load("x.params")[0].asnumpy()
array([1., 2.], dtype=float32)
""",
        "load_frombuffer": """
>>> nd.save("x.params", [nd.array([1, 2])])
>>> import pathlib
>>> nd.load_frombuffer(pathlib.Path("x.params").read_bytes())[0].asnumpy()
array([1., 2.], dtype=float32)
""",
        "onehot_encode": """
>>> nd.onehot_encode(nd.array([0, 2]), nd.zeros((2, 3))).asnumpy()
array([[1., 0., 0.],
       [0., 0., 1.]], dtype=float32)
""",
        "reset_arrays": """
>>> x = nd.ones(2)
>>> nd.reset_arrays(x, num_arrays=1)
>>> x.asnumpy()
array([0., 0.], dtype=float32)
""",
        "cast_storage": """
>>> nd.cast_storage(nd.array([1, 2]), "default").asnumpy()
array([1., 2.], dtype=float32)
""",
        "sgd_update": """
>>> w, g = nd.array([1, 2]), nd.array([10, 10])
>>> nd.sgd_update(w, g, lr=0.1).asnumpy()
array([0., 1.], dtype=float32)
""",
        "sgd_mom_update": """
>>> w, g, mom = nd.array([1, 2]), nd.array([10, 10]), nd.zeros(2)
>>> nd.sgd_mom_update(w, g, mom, lr=0.1, momentum=0.9).asnumpy()
array([0., 1.], dtype=float32)
""",
        "nag_mom_update": """
>>> w, g, mom = nd.array([4, 2]), nd.array([1, 1]), nd.zeros(2)
>>> nd.nag_mom_update(w, g, mom, lr=1, momentum=0.5).asnumpy()
array([2.5, 0.5], dtype=float32)
""",
        "adam_update": """
>>> w, g, mean, var = nd.array([1, 2]), nd.array([10, -10]), nd.zeros(2), nd.zeros(2)
>>> nd.adam_update(w, g, mean, var, lr=0.1).asnumpy().round(3)
array([0.684, 2.316], dtype=float32)
""",
        "ftml_update": """
>>> w, g, d, v, z = nd.array([1]), nd.array([10]), nd.zeros(1), nd.zeros(1), nd.zeros(1)
>>> nd.ftml_update(w, g, d, v, z, lr=0.1, t=1).asnumpy().round(3)
array([0.9], dtype=float32)
""",
        "ftrl_update": """
>>> w, g, z, n = nd.array([1]), nd.array([10]), nd.zeros(1), nd.zeros(1)
>>> nd.ftrl_update(w, g, z, n, lr=0.1).asnumpy().round(3)
array([0.818], dtype=float32)
""",
        "lamb_update_phase1": """
>>> w, g, mean, var = nd.array([1]), nd.array([10]), nd.zeros(1), nd.zeros(1)
>>> nd.lamb_update_phase1(w, g, mean, var, t=1).asnumpy().round(3)
array([1.], dtype=float32)
""",
        "lamb_update_phase2": """
>>> w, g = nd.array([3, 4]), nd.array([1, 0])
>>> nd.lamb_update_phase2(w, g, nd.norm(w), nd.norm(g), lr=0.5).asnumpy()
array([0.5, 4. ], dtype=float32)
""",
        "rmsprop_update": """
>>> w, g, n = nd.array([1]), nd.array([10]), nd.zeros(1)
>>> nd.rmsprop_update(w, g, n, lr=0.1, gamma1=0.75).asnumpy().round(3)
array([0.8], dtype=float32)
""",
        "rmspropalex_update": """
>>> w, g, n, mean, delta = nd.array([1]), nd.array([10]), nd.zeros(1), nd.zeros(1), nd.zeros(1)
>>> nd.rmspropalex_update(w, g, n, mean, delta, lr=0.1).asnumpy().round(3)
array([0.541], dtype=float32)
""",
        "signsgd_update": """
>>> nd.signsgd_update(nd.array([1, 2]), nd.array([10, -10]), lr=0.5).asnumpy()
array([0.5, 2.5], dtype=float32)
""",
        "signum_update": """
>>> w, g, mom = nd.array([1, 2]), nd.array([10, -10]), nd.zeros(2)
>>> nd.signum_update(w, g, mom, lr=0.5, momentum=0.9).asnumpy()
array([0.5, 2.5], dtype=float32)
""",
        "mp_sgd_update": """
>>> w = nd.array([1, 2], dtype="float16")
>>> g, w32 = nd.ones(2, dtype="float16"), w.astype("float32")
>>> nd.mp_sgd_update(w, g, w32, lr=0.5).asnumpy()
array([0.5, 1.5], dtype=float16)
""",
        "mp_sgd_mom_update": """
>>> w = nd.array([1, 2], dtype="float16")
>>> g, mom, w32 = nd.ones(2, dtype="float16"), nd.zeros(2), w.astype("float32")
>>> nd.mp_sgd_mom_update(w, g, mom, w32, lr=0.5, momentum=0.9).asnumpy()
array([0.5, 1.5], dtype=float16)
""",
        "mp_nag_mom_update": """
>>> w = nd.array([4, 2], dtype="float16")
>>> g, mom, w32 = nd.ones(2, dtype="float16"), nd.zeros(2), w.astype("float32")
>>> nd.mp_nag_mom_update(w, g, mom, w32, lr=1, momentum=0.5).asnumpy()
array([2.5, 0.5], dtype=float16)
""",
        "multi_sgd_update": """
>>> w, v, g = nd.array([1]), nd.array([2]), nd.ones(1)
>>> [x.asnumpy() for x in nd.multi_sgd_update(w, g, v, g, lrs=(0.5, 1), wds=(0, 0), num_weights=2)]
[array([0.5], dtype=float32), array([1.], dtype=float32)]
""",
        "multi_sgd_mom_update": """
>>> w, g, mom = nd.array([1]), nd.ones(1), nd.zeros(1)
>>> made = nd.multi_sgd_mom_update(w, g, mom, lrs=(0.5,), wds=(0,), num_weights=1, out=[w])
>>> w.asnumpy()
array([0.5], dtype=float32)
""",
        "multi_mp_sgd_update": """
>>> w, g, w32 = nd.ones(1, dtype="float16"), nd.ones(1, dtype="float16"), nd.ones(1)
>>> made = nd.multi_mp_sgd_update(w, g, w32, lrs=(0.5,), wds=(0,), num_weights=1, out=[w])
>>> w.asnumpy(), w32.asnumpy()
(array([0.5], dtype=float16), array([0.5], dtype=float32))
""",
        "multi_mp_sgd_mom_update": """
>>> w, g, mom, w32 = nd.ones(1, dtype="float16"), nd.ones(1, dtype="float16"), nd.zeros(1), nd.ones(1)
>>> made = nd.multi_mp_sgd_mom_update(w, g, mom, w32, lrs=(0.5,), wds=(0,), num_weights=1, out=[w])
>>> w.asnumpy(), w32.asnumpy()
(array([0.5], dtype=float16), array([0.5], dtype=float32))
""",
        "preloaded_multi_sgd_update": """
>>> w, g = nd.ones(1), nd.ones(1)
>>> made = nd.preloaded_multi_sgd_update(w, g, nd.array([0.5]), nd.array([0]), num_weights=1, out=[w])
>>> w.asnumpy()
array([0.5], dtype=float32)
""",
        "preloaded_multi_sgd_mom_update": """
>>> w, g, mom = nd.ones(1), nd.ones(1), nd.zeros(1)
>>> made = nd.preloaded_multi_sgd_mom_update(w, g, mom, nd.array([0.5]), nd.array([0]), num_weights=1, out=[w])
>>> w.asnumpy()
array([0.5], dtype=float32)
""",
        "preloaded_multi_mp_sgd_update": """
>>> w, g, w32 = nd.ones(1, dtype="float16"), nd.ones(1, dtype="float16"), nd.ones(1)
>>> made = nd.preloaded_multi_mp_sgd_update(w, g, w32, nd.array([0.5]), nd.array([0]), num_weights=1, out=[w])
>>> w.asnumpy(), w32.asnumpy()
(array([0.5], dtype=float16), array([0.5], dtype=float32))
""",
        "preloaded_multi_mp_sgd_mom_update": """
>>> w, g, mom, w32 = nd.ones(1, dtype="float16"), nd.ones(1, dtype="float16"), nd.zeros(1), nd.ones(1)
>>> lrs, wds = nd.array([0.5]), nd.array([0])
>>> made = nd.preloaded_multi_mp_sgd_mom_update(w, g, mom, w32, lrs, wds, num_weights=1, out=[w])
>>> w.asnumpy(), w32.asnumpy()
(array([0.5], dtype=float16), array([0.5], dtype=float32))
""",
    },
    "gluongraph.nd.linalg": {
        "gemm": """
>>> nd.linalg.gemm(nd.eye(2), nd.array([[1, 2], [3, 4]]), nd.ones((2, 2)), alpha=2).asnumpy()
array([[3., 5.],
       [7., 9.]], dtype=float32)
""",
        "gemm2": """
>>> nd.linalg.gemm2(nd.array([[1, 2]]), nd.array([[1, 2]]), transpose_b=True).asnumpy()
array([[5.]], dtype=float32)
""",
        "syrk": """
>>> nd.linalg.syrk(nd.array([[1, 2], [3, 4]])).asnumpy()
array([[ 5., 11.],
       [11., 25.]], dtype=float32)
""",
        "trmm": """
>>> nd.linalg.trmm(nd.array([[1, 0], [1, 1]]), nd.array([[1, 2], [3, 4]])).asnumpy()
array([[1., 2.],
       [4., 6.]], dtype=float32)
""",
        "potrf": """
>>> nd.linalg.potrf(nd.array([[4, 2], [2, 10]])).asnumpy()
array([[2., 0.],
       [1., 3.]], dtype=float32)
""",
        "potri": """
>>> nd.linalg.potri(nd.array([[2, 0], [0, 4]])).asnumpy()
array([[0.25  , 0.    ],
       [0.    , 0.0625]], dtype=float32)
""",
        "trsm": """
>>> nd.linalg.trsm(nd.array([[2, 0], [1, 1]]), nd.array([[2], [3]])).asnumpy()
array([[1.],
       [2.]], dtype=float32)
""",
        "inverse": """
>>> nd.linalg.inverse(nd.array([[2, 0], [0, 4]])).asnumpy()
array([[0.5 , 0.  ],
       [0.  , 0.25]], dtype=float32)
""",
        "gelqf": """
>>> q, l = nd.linalg.gelqf(nd.array([[3, 4]]))
>>> nd.dot(l, q).asnumpy().round(3)
array([[3., 4.]], dtype=float32)
""",
        "syevd": """
>>> u, values = nd.linalg.syevd(nd.array([[2, 0], [0, 1]]))
>>> values.asnumpy()
array([1., 2.], dtype=float32)
""",
        "det": """
>>> nd.linalg.det(nd.array([[2, 0], [0, 4]])).asnumpy().round(3)
array([8.], dtype=float32)
""",
        "slogdet": """
>>> sign, size = nd.linalg.slogdet(nd.array([[-2, 0], [0, 1]]))
>>> sign.asnumpy().round(3), size.asnumpy().round(3)
(array([-1.], dtype=float32), array([0.693], dtype=float32))
""",
        "sumlogdiag": """
>>> nd.linalg.sumlogdiag(nd.array([[1, 0], [5, 10]])).asnumpy().round(3)
array([2.303], dtype=float32)
""",
        "extractdiag": """
>>> nd.linalg.extractdiag(nd.array([[1, 2], [3, 4]])).asnumpy()
array([1., 4.], dtype=float32)
""",
        "makediag": """
>>> nd.linalg.makediag(nd.array([1, 2])).asnumpy()
array([[1., 0.],
       [0., 2.]], dtype=float32)
""",
        "extracttrian": """
>>> nd.linalg.extracttrian(nd.array([[1, 2], [3, 4]])).asnumpy()
array([1., 3., 4.], dtype=float32)
""",
        "maketrian": """
>>> nd.linalg.maketrian(nd.array([1, 2, 3])).asnumpy()
array([[1., 0.],
       [2., 3.]], dtype=float32)
""",
    },
    "gluongraph.random": {
        "uniform": """
>>> x = nd.random.uniform(5, 10, shape=(2, 3)).asnumpy()
>>> x.shape, bool(x.min() >= 5 and x.max() < 10)
((2, 3), True)
""",
        "normal": """
>>> nd.random.normal(0, 1, shape=(2, 3)).shape
(2, 3)
>>> nd.random.normal(nd.array([0, 50]), nd.ones(2), shape=3).shape
(2, 3)
""",
        "randn": """
>>> nd.random.randn(2, 3).shape
(2, 3)
""",
        "randint": """
>>> x = nd.random.randint(0, 10, shape=100).asnumpy()
>>> x.dtype, bool(x.min() >= 0 and x.max() < 10)
(dtype('int32'), True)
""",
        "bernoulli": """
>>> nd.random.bernoulli(1.0, shape=3).asnumpy()
array([1., 1., 1.], dtype=float32)
""",
        "exponential": """
>>> nd.random.exponential(2.0, shape=(2, 3)).shape
(2, 3)
""",
        "random_exponential": """
>>> nd.random.random_exponential(0.5, shape=(2, 3)).shape
(2, 3)
""",
        "shuffle": """
>>> nd.sort(nd.random.shuffle(nd.array([1, 2, 3]))).asnumpy()
array([1., 2., 3.], dtype=float32)
""",
        "multinomial": """
>>> nd.random.multinomial(nd.array([[0, 1], [1, 0]])).asnumpy()
array([1, 0], dtype=int32)
>>> index, log_prob = nd.random.multinomial(nd.array([0, 1]), shape=2, get_prob=True)
>>> index.asnumpy(), log_prob.asnumpy()
(array([1, 1], dtype=int32), array([0., 0.], dtype=float32))
""",
        "gamma": """
>>> nd.random.gamma(2.0, 1.0, shape=(2, 3)).shape
(2, 3)
""",
        "poisson": """
>>> nd.random.poisson(4.0, shape=(2, 3)).shape
(2, 3)
""",
        "negative_binomial": """
>>> nd.random.negative_binomial(3, 0.5, shape=(2, 3)).shape
(2, 3)
""",
        "generalized_negative_binomial": """
>>> nd.random.generalized_negative_binomial(2.0, 0.5, shape=(2, 3)).shape
(2, 3)
""",
        "sample_uniform": """
>>> nd.random.sample_uniform(nd.array([0, 10]), nd.array([1, 20]), shape=3).shape
(2, 3)
""",
        "sample_normal": """
>>> nd.random.sample_normal(nd.array([0, 10]), nd.array([1, 2]), shape=3).shape
(2, 3)
""",
        "sample_gamma": """
>>> nd.random.sample_gamma(nd.array([1, 2]), nd.array([1, 1]), shape=3).shape
(2, 3)
""",
        "sample_poisson": """
>>> nd.random.sample_poisson(nd.array([1, 50]), shape=3).shape
(2, 3)
""",
        "sample_exponential": """
>>> nd.random.sample_exponential(nd.array([1, 50]), shape=3).shape
(2, 3)
""",
        "sample_negative_binomial": """
>>> nd.random.sample_negative_binomial(nd.array([1, 5]), nd.array([0.5, 0.1]), shape=3).shape
(2, 3)
""",
        "sample_generalized_negative_binomial": """
>>> nd.random.sample_generalized_negative_binomial(nd.array([1, 5]), nd.array([0.5, 0.1]), shape=3).shape
(2, 3)
""",
        "uniform_like": """
>>> nd.random.uniform_like(nd.zeros((2, 3)), low=1, high=2).shape
(2, 3)
""",
        "normal_like": """
>>> nd.random.normal_like(nd.zeros((2, 3)), loc=5).shape
(2, 3)
""",
        "exponential_like": """
>>> nd.random.exponential_like(nd.zeros((2, 3)), lam=2.0).shape
(2, 3)
""",
        "gamma_like": """
>>> nd.random.gamma_like(nd.zeros((2, 3)), alpha=2.0).shape
(2, 3)
""",
        "poisson_like": """
>>> nd.random.poisson_like(nd.zeros((2, 3)), lam=4.0).shape
(2, 3)
""",
        "negative_binomial_like": """
>>> nd.random.negative_binomial_like(nd.zeros((2, 3)), k=3, p=0.5).shape
(2, 3)
""",
        "generalized_negative_binomial_like": """
>>> nd.random.generalized_negative_binomial_like(nd.zeros((2, 3)), mu=2.0).shape
(2, 3)
""",
        "get_state": """
>>> nd.random.seed(3)
>>> x = nd.random.uniform(shape=3)
>>> nd.random.get_state()
(3, 1)
""",
        "set_state": """
>>> state = nd.random.get_state()
>>> x = nd.random.uniform(shape=3)
>>> nd.random.set_state(state)
>>> bool((x == nd.random.uniform(shape=3)).min().asscalar())
True
""",
        "all_states": """
>>> nd.random.seed(3)
>>> nd.random.all_states()
{'first': 3, 'devices': []}
""",
        "set_all_states": """
>>> states = nd.random.all_states()
>>> x = nd.random.uniform(shape=3)
>>> nd.random.set_all_states(states)
>>> bool((x == nd.random.uniform(shape=3)).min().asscalar())
True
""",
    },
    "gluongraph.nd.contrib": {
        "arange_like": """
>>> nd.contrib.arange_like(nd.zeros((2, 3)), axis=1).asnumpy()
array([0., 1., 2.], dtype=float32)
""",
        "div_sqrt_dim": """
>>> nd.contrib.div_sqrt_dim(nd.array([2, 4, 6, 8])).asnumpy()
array([1., 2., 3., 4.], dtype=float32)
""",
        "quadratic": """
>>> nd.contrib.quadratic(nd.array([1, 2]), a=1, b=2, c=3).asnumpy()
array([ 6., 11.], dtype=float32)
""",
        "isfinite": """
>>> nd.contrib.isfinite(nd.array([1, float("inf"), float("nan")])).asnumpy()
array([1., 0., 0.], dtype=float32)
""",
        "isnan": """
>>> nd.contrib.isnan(nd.array([1, float("nan")])).asnumpy()
array([0., 1.], dtype=float32)
""",
        "isinf": """
>>> nd.contrib.isinf(nd.array([1, float("inf")])).asnumpy()
array([0., 1.], dtype=float32)
""",
        "allclose": """
>>> nd.contrib.allclose(nd.array([1, 2]), nd.array([1, 2.000001])).asnumpy()
array(1, dtype=uint8)
""",
        "round_ste": """
>>> from gluongraph import autograd
>>> x = nd.array([0.5, 1])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.contrib.round_ste(3 * x)
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([2., 3.], dtype=float32), array([3., 3.], dtype=float32))
""",
        "sign_ste": """
>>> from gluongraph import autograd
>>> x = nd.array([-2, 2])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.contrib.sign_ste(3 * x)
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([-1.,  1.], dtype=float32), array([3., 3.], dtype=float32))
""",
        "gradientmultiplier": """
>>> from gluongraph import autograd
>>> x = nd.array([1, 2])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.contrib.gradientmultiplier(x * x, scalar=0.5)
>>> y.backward()
>>> y.asnumpy(), x.grad.asnumpy()
(array([1., 4.], dtype=float32), array([1., 2.], dtype=float32))
""",
        "index_copy": """
>>> rows = nd.array([2, 0], dtype="int32")
>>> nd.contrib.index_copy(nd.zeros((3, 2)), rows, nd.array([[1, 2], [3, 4]])).asnumpy()
array([[3., 4.],
       [0., 0.],
       [1., 2.]], dtype=float32)
""",
        "index_array": """
>>> nd.contrib.index_array(nd.zeros((1, 2))).asnumpy()
array([[[0, 0],
        [0, 1]]])
""",
        "box_iou": """
>>> nd.contrib.box_iou(nd.array([[0, 0, 2, 2]]), nd.array([[1, 0, 3, 2], [0, 0, 2, 2]])).asnumpy().round(3)
array([[0.333, 1.   ]], dtype=float32)
""",
        "box_nms": """
>>> rows = nd.array([[0, 0.9, 0, 0, 2, 2], [0, 0.8, 0, 0, 2, 2], [0, 0.7, 4, 4, 5, 5]])
>>> nd.contrib.box_nms(rows, id_index=0).asnumpy()[:, 1]  # the scores
array([ 0.9,  0.7, -1. ], dtype=float32)
""",
        "box_encode": """
>>> b = nd.array([[[0, 0, 2, 2]]])
>>> targets, mask = nd.contrib.box_encode(nd.array([[1]]), nd.array([[0]]), b, b, nd.zeros(4), nd.ones(4))
>>> targets.asnumpy(), mask.asnumpy()
(array([[[0., 0., 0., 0.]]], dtype=float32), array([[[1., 1., 1., 1.]]], dtype=float32))
""",
        "box_decode": """
>>> nd.contrib.box_decode(nd.zeros((1, 1, 4)), nd.array([[[1, 1, 2, 2]]])).asnumpy()
array([[[0., 0., 2., 2.]]], dtype=float32)
""",
        "bipartite_matching": """
>>> [x.asnumpy() for x in nd.contrib.bipartite_matching(nd.array([[0.5, 0.6], [0.1, 0.9]]), threshold=0.2)]
[array([0., 1.], dtype=float32), array([0., 1.], dtype=float32)]
""",
        "BilinearResize2D": """
>>> nd.contrib.BilinearResize2D(nd.array([[[[1, 3]]]]), height=1, width=3).asnumpy()
array([[[[1., 2., 3.]]]], dtype=float32)
""",
        "AdaptiveAvgPooling2D": """
>>> nd.contrib.AdaptiveAvgPooling2D(nd.array([[[[1, 2], [3, 6]]]]), output_size=1).asnumpy()
array([[[[3.]]]], dtype=float32)
""",
        "CTCLoss": """
>>> nd.contrib.CTCLoss(nd.zeros((2, 1, 3)), nd.array([[1]])).asnumpy().round(3)
array([1.099], dtype=float32)
""",
        "DeformableConvolution": """
>>> x, offset, weight = nd.ones((1, 1, 3, 3)), nd.zeros((1, 8, 2, 2)), nd.ones((1, 1, 2, 2))
>>> nd.contrib.DeformableConvolution(x, offset, weight, kernel=(2, 2), no_bias=True).asnumpy()
array([[[[4., 4.],
         [4., 4.]]]], dtype=float32)
""",
        "ModulatedDeformableConvolution": """
>>> x, weight = nd.ones((1, 1, 3, 3)), nd.ones((1, 1, 2, 2))
>>> offset, mask = nd.zeros((1, 8, 2, 2)), nd.full((1, 4, 2, 2), 0.5)
>>> nd.contrib.ModulatedDeformableConvolution(x, offset, mask, weight, kernel=(2, 2), no_bias=True).asnumpy()
array([[[[2., 2.],
         [2., 2.]]]], dtype=float32)
""",
        "quantize": """
>>> q, low, high = nd.contrib.quantize(nd.array([0, 0.5, 1]), nd.array([0]), nd.array([1]))
>>> q.asnumpy()
array([  0, 128, 255], dtype=uint8)
""",
        "dequantize": """
>>> nd.contrib.dequantize(nd.array([0, 255], dtype="uint8"), nd.array([0]), nd.array([1])).asnumpy()
array([0., 1.], dtype=float32)
""",
        "interleaved_matmul_selfatt_qk": """
>>> nd.contrib.interleaved_matmul_selfatt_qk(nd.ones((5, 2, 3 * 8)), heads=4).shape
(8, 5, 5)
""",
        "interleaved_matmul_selfatt_valatt": """
>>> nd.contrib.interleaved_matmul_selfatt_valatt(nd.ones((5, 2, 3 * 8)), nd.ones((2 * 4, 5, 5)), heads=4).shape
(5, 2, 8)
""",
        "interleaved_matmul_encdec_qk": """
>>> nd.contrib.interleaved_matmul_encdec_qk(nd.ones((3, 2, 8)), nd.ones((5, 2, 2 * 8)), heads=4).shape
(8, 3, 5)
""",
        "interleaved_matmul_encdec_valatt": """
>>> nd.contrib.interleaved_matmul_encdec_valatt(nd.ones((5, 2, 2 * 8)), nd.ones((2 * 4, 3, 5)), heads=4).shape
(3, 2, 8)
""",
        "boolean_mask": """
>>> nd.contrib.boolean_mask(nd.array([[1, 2], [3, 4], [5, 6]]), nd.array([1, 0, 1])).asnumpy()
array([[1., 2.],
       [5., 6.]], dtype=float32)
""",
        "SyncBatchNorm": """
>>> x = nd.array([[1, 2], [3, 6]])
>>> nd.contrib.SyncBatchNorm(x, nd.ones(2), nd.zeros(2), nd.zeros(2), nd.ones(2), eps=0).asnumpy()
array([[1., 2.],
       [3., 6.]], dtype=float32)
""",
        "rand_zipfian": """
>>> drawn, true, sampled = nd.contrib.rand_zipfian(nd.array([0, 3]), num_sampled=4, range_max=10)
>>> true.asnumpy().round(3), drawn.shape, sampled.shape
(array([1.156, 0.372], dtype=float32), (4,), (4,))
""",
        "cond": """
>>> nd.contrib.cond(nd.array([1]), lambda: nd.array([2]), lambda: nd.array([3])).asnumpy()
array([2.], dtype=float32)
""",
        "foreach": """
>>> outputs, last = nd.contrib.foreach(lambda x, s: (s + x, s + x), nd.array([1, 2, 3]), nd.array([0]))
>>> outputs.asnumpy().ravel(), last.asnumpy()
(array([1., 3., 6.], dtype=float32), array([6.], dtype=float32))
""",
        "while_loop": """
>>> step = lambda i: (i * i, [i + 1])
>>> outputs, (last,) = nd.contrib.while_loop(lambda i: i < 3, step, [nd.array([0])], max_iterations=4)
>>> outputs.asnumpy().ravel(), last.asnumpy()
(array([0., 1., 4., 0.], dtype=float32), array([3.], dtype=float32))
""",
        "MultiBoxPrior": """
>>> nd.contrib.MultiBoxPrior(nd.zeros((1, 3, 1, 1)), sizes=(0.5, 1)).asnumpy()
array([[[0.25, 0.25, 0.75, 0.75],
        [0.  , 0.  , 1.  , 1.  ]]], dtype=float32)
""",
        "MultiBoxDetection": """
>>> anchor = nd.array([[[0.1, 0.1, 0.5, 0.5]]])
>>> nd.contrib.MultiBoxDetection(nd.array([[[0.25], [0.75]]]), nd.zeros((1, 4)), anchor).asnumpy().round(3)
array([[[0.  , 0.75, 0.1 , 0.1 , 0.5 , 0.5 ]]], dtype=float32)
""",
        "MultiBoxTarget": """
>>> anchor, label = nd.array([[[0.1, 0.1, 0.5, 0.5]]]), nd.array([[[0, 0.1, 0.1, 0.5, 0.5]]])
>>> offsets, mask, classes = nd.contrib.MultiBoxTarget(anchor, label, nd.zeros((1, 2, 1)))
>>> mask.asnumpy(), classes.asnumpy()
(array([[1., 1., 1., 1.]], dtype=float32), array([[1.]], dtype=float32))
""",
        "hawkesll": """
>>> lda, alpha, beta, state = nd.array([[1]]), nd.array([0.5]), nd.array([1]), nd.zeros((1, 1))
>>> lags, marks = nd.array([[1, 1]]), nd.zeros((1, 2), dtype="int32")
>>> likelihood, state = nd.contrib.hawkesll(lda, alpha, beta, state, lags, marks, nd.array([2]), nd.array([3]))
>>> likelihood.asnumpy().round(3)
array([-3.58], dtype=float32)
""",
        "adamw_update": """
>>> w, g, mean, var = nd.ones(1), nd.ones(1), nd.zeros(1), nd.zeros(1)
>>> nd.contrib.adamw_update(w, g, mean, var, nd.array([1]), lr=0.1, eta=1).asnumpy().round(3)
array([0.684], dtype=float32)
""",
        "mp_adamw_update": """
>>> w, g = nd.ones(1, dtype="float16"), nd.ones(1, dtype="float16")
>>> mean, var, w32 = nd.zeros(1), nd.zeros(1), nd.ones(1)
>>> made = nd.contrib.mp_adamw_update(w, g, mean, var, w32, nd.array([1]), lr=0.1, eta=1)
>>> w32.asnumpy().round(3)
array([0.684], dtype=float32)
""",
        "multi_adamw_update": """
>>> w, g, mean, var = nd.ones(1), nd.ones(1), nd.zeros(1), nd.zeros(1)
>>> how = {"lrs": [0.1], "wds": [0], "etas": [1], "out": [w]}
>>> made = nd.contrib.multi_adamw_update([w], [g], [mean], [var], nd.array([1]), **how)
>>> w.asnumpy().round(3)
array([0.684], dtype=float32)
""",
        "multi_mp_adamw_update": """
>>> w, g = nd.ones(1, dtype="float16"), nd.ones(1, dtype="float16")
>>> mean, var, w32 = nd.zeros(1), nd.zeros(1), nd.ones(1)
>>> how = {"lrs": [0.1], "wds": [0], "etas": [1], "out": [w]}
>>> made = nd.contrib.multi_mp_adamw_update([w], [g], [mean], [var], [w32], nd.array([1]), **how)
>>> w32.asnumpy().round(3)
array([0.684], dtype=float32)
""",
        "multi_lamb_update": """
>>> w, g, mean, var = nd.array([3, 4]), nd.array([1, 1]), nd.zeros(2), nd.zeros(2)
>>> made = nd.contrib.multi_lamb_update([w], [g], [mean], [var], step_count=[1], lrs=[0.1], wds=[0], out=[w])
>>> w.asnumpy().round(3)
array([2.646, 3.646], dtype=float32)
""",
        "multi_mp_lamb_update": """
>>> w, g = nd.array([3, 4], dtype="float16"), nd.ones(2, dtype="float16")
>>> mean, var, w32 = nd.zeros(2), nd.zeros(2), w.astype("float32")
>>> how = {"step_count": [1], "lrs": [0.1], "wds": [0], "out": [w]}
>>> made = nd.contrib.multi_mp_lamb_update([w], [g], [mean], [var], [w32], **how)
>>> w32.asnumpy().round(3)
array([2.646, 3.646], dtype=float32)
""",
        "ROIAlign": """
>>> nd.contrib.ROIAlign(nd.ones((1, 3, 8, 8)), nd.array([[0, 1, 1, 5, 5]]), (2, 2), 1.0).shape
(1, 3, 2, 2)
""",
        "RROIAlign": """
>>> nd.contrib.RROIAlign(nd.ones((1, 3, 8, 8)), nd.array([[0, 4, 4, 4, 2, 30]]), (2, 2), 1.0).shape
(1, 3, 2, 2)
""",
    },
    "gluongraph.nd.image": {
        "to_tensor": """
>>> nd.image.to_tensor(nd.array([[[0, 51, 255]]], dtype="uint8")).asnumpy().ravel()
array([0. , 0.2, 1. ], dtype=float32)
""",
        "normalize": """
>>> nd.image.normalize(nd.ones((3, 2, 2)), mean=(0, 1, 2), std=2).asnumpy()[:, 0, 0]
array([ 0.5,  0. , -0.5], dtype=float32)
""",
        "resize": """
>>> nd.image.resize(nd.zeros((4, 6, 3), dtype="uint8"), (3, 2)).shape
(2, 3, 3)
""",
        "crop": """
>>> nd.image.crop(nd.zeros((4, 6, 3), dtype="uint8"), 1, 2, 3, 2).shape
(2, 3, 3)
""",
        "flip_left_right": """
>>> nd.image.flip_left_right(nd.array([[[1], [2]]])).asnumpy().ravel()
array([2., 1.], dtype=float32)
""",
        "flip_top_bottom": """
>>> nd.image.flip_top_bottom(nd.array([[[1]], [[2]]])).asnumpy().ravel()
array([2., 1.], dtype=float32)
""",
        "random_flip_left_right": """
>>> nd.image.random_flip_left_right(nd.array([[[1], [2]]]), p=1).asnumpy().ravel()
array([2., 1.], dtype=float32)
""",
        "random_flip_top_bottom": """
>>> nd.image.random_flip_top_bottom(nd.array([[[1]], [[2]]]), p=1).asnumpy().ravel()
array([2., 1.], dtype=float32)
""",
        "random_brightness": """
>>> nd.image.random_brightness(nd.ones((1, 1, 3)), 2, 2).asnumpy()
array([[[2., 2., 2.]]], dtype=float32)
""",
        "random_contrast": """
>>> nd.image.random_contrast(nd.array([[[1, 1, 1], [3, 3, 3]]]), 0.5, 0.5).asnumpy().round(3)
array([[[1.5, 1.5, 1.5],
        [2.5, 2.5, 2.5]]], dtype=float32)
""",
        "random_saturation": """
>>> nd.image.random_saturation(nd.array([[[1, 0, 0]]]), 0, 0).asnumpy().round(3)
array([[[0.299, 0.299, 0.299]]], dtype=float32)
""",
        "random_hue": """
>>> nd.image.random_hue(nd.ones((2, 2, 3)), 0, 0.1).shape
(2, 2, 3)
""",
        "random_color_jitter": """
>>> nd.image.random_color_jitter(nd.ones((2, 2, 3)), brightness=0.1, hue=0.1).shape
(2, 2, 3)
""",
        "random_lighting": """
>>> nd.image.random_lighting(nd.ones((2, 2, 3))).shape
(2, 2, 3)
""",
        "adjust_lighting": """
>>> nd.image.adjust_lighting(nd.ones((1, 1, 3)), (0, 0, 0)).asnumpy()
array([[[1., 1., 1.]]], dtype=float32)
""",
    },
}
