"""What functions of one kind have in common, as a paragraph of their docstrings: arguments, results and errors."""

from __future__ import annotations

ARITHMETIC = """
Arguments are NDArrays of one dtype whose shapes broadcast as in numpy, or one of them is a number. The result has that
dtype and the broadcast shape.

Raises:
    ShapeError: the shapes do not broadcast.
    DTypeError: the dtypes differ, or a number has a fraction and the array is of integers.
"""
COMPARISON = """
Arguments are NDArrays of one dtype whose shapes broadcast as in numpy, or one of them is a number. The result has that
dtype, not bool, and the broadcast shape.

Raises:
    ShapeError: the shapes do not broadcast.
    DTypeError: the dtypes differ.
"""
OF_FLOATS = """
`data` has a float dtype and any shape; the result has both.

Raises:
    DTypeError: `data` is of integers.
"""
SOFTMAX = """
`data` has a float dtype, or is converted to `dtype`, and is divided by `temperature` if that is given. The sum is along
`axis`. The result has the shape of `data`.

Raises:
    DTypeError: `data` is of integers, and no `dtype` is given.
    ShapeError: there is no such axis.
"""
OF_NUMBERS = """
`data` has any dtype of numbers and any shape; the result has both.
"""
REDUCTION = """
`axis` is an axis, a tuple of axes, or None for all; a negative one counts from the end. The result has the dtype of
`data` and the axes that are left, with `keepdims` also the others, of extent 1. Over all axes it has shape (1,).

Raises:
    ShapeError: there is no such axis.
"""
OF_SHAPES = """
Raises:
    ShapeError: an axis that does not exist, or shapes that do not fit together.
"""
UPDATE = """
In the formula w is `weight`, g is `grad`, r is `rescale_grad`, and C limits elements to ±clip_gradient where that is
above 0. All arrays have the shape of `weight`. Those behind `grad` are states, which are written in place. The result
is the new weight; `weight` itself changes with out=weight only.

Raises:
    TypeError: an array is missing.
"""
DRAW = """
Parameters are numbers, or NDArrays with a parameter for each distribution. The result has `shape` and `dtype` (float32
unless given); with arrays as parameters their shape stands before `shape`.

Raises:
    ArgumentError: a parameter is outside of its range.
"""

FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "gluongraph.nd": {
        ARITHMETIC: ("add", "subtract", "multiply", "divide", "modulo", "power", "maximum", "minimum"),
        COMPARISON: (*("equal", "not_equal", "lesser", "lesser_equal", "greater", "greater_equal"),),
        OF_FLOATS: (
            *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "cbrt", "rcbrt", "reciprocal"),
            *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh"),
            *("arctanh", "degrees", "radians", "gamma", "gammaln", "erf", "erfinv", "sigmoid", "softsign", "softrelu"),
            *("hard_sigmoid", "smooth_l1"),
        ),
        SOFTMAX: ("softmax", "log_softmax", "softmin"),
        OF_NUMBERS: (
            *("negative", "abs", "sign", "square", "relu", "floor", "ceil", "round", "rint", "trunc", "logical_not"),
            *("identity", "BlockGrad", "zeros_like", "ones_like"),
        ),
        REDUCTION: ("sum", "mean", "prod", "max", "min", "norm", "nansum", "nanprod"),
        OF_SHAPES: (
            *("reshape", "expand_dims", "squeeze", "transpose", "swapaxes", "flip", "slice_axis", "broadcast_to"),
            *("concat", "stack", "split", "dot", "batch_dot", "matmul", "FullyConnected", "Convolution", "LayerNorm"),
            *("where", "argmax", "argmin", "cumsum", "repeat", "take", "pick"),
        ),
        UPDATE: (
            *("sgd_update", "sgd_mom_update", "nag_mom_update", "signsgd_update", "signum_update", "adam_update"),
            *("rmsprop_update", "rmspropalex_update", "ftrl_update"),
        ),
    },
    "gluongraph.random": {
        DRAW: (
            *("uniform", "normal", "bernoulli", "exponential", "gamma", "poisson", "negative_binomial"),
            "generalized_negative_binomial",
        ),
    },
}
