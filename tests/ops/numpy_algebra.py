"""The algebra of `lower` rules in numpy: shows that a rule means what the op's numpy meaning says, with no compiler."""

import itertools
import math

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import dtype_name, numpy_dtype

UNARY = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": ops.erf.numpy,
    "normal_cdf": ops.normal_cdf.numpy,
    "normal_pdf": ops.normal_pdf.numpy,
    "sigmoid": ops.sigmoid.numpy,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "logical_not": np.logical_not,
    "isnan": np.isnan,
    "isfinite": np.isfinite,
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
}
REDUCE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


class NumpyAlgebra:
    """Scalars are numpy scalars or 0-d arrays, vectors are 1-d arrays. Mixed dtypes fail, as they do on a target."""

    def __init__(self):
        self.reduced = None  # what the last reduction gave: a rule must return that very object
        self.constants = []
        self.compares_equal = False  # were two floating-point numbers compared, neither of them a constant?

    def const(self, value, dtype):
        assert type(value) in (int, float, bool)
        self.constants.append(numpy_dtype(dtype).type(value))
        return self.constants[-1]

    def cast(self, x, dtype):
        return np.asarray(x).astype(numpy_dtype(dtype))

    def bitcast(self, x, dtype):
        return np.asarray(x).view(numpy_dtype(dtype))

    def fma(self, x, y, z):
        _one_dtype(x, y, z)
        return x * y + z

    def where(self, condition, yes, no):
        assert np.asarray(condition).dtype == bool
        _one_dtype(yes, no)
        return np.where(condition, yes, no)

    def named(self, x):
        return x

    def unary(self, name, x):
        return UNARY[name](x)

    def binary(self, name, x, y):
        _one_dtype(x, y)
        floats = all(type(v) is not int and np.asarray(v).dtype.kind == "f" for v in (x, y))
        if name in ("equal", "not_equal") and floats and not any(v is c for v in (x, y) for c in self.constants):
            self.compares_equal = True
        return BINARY[name](x, y)

    def reduce(self, name, extents, element, dtype):
        assert extents and all(type(n) is int for n in extents)
        values = [np.asarray(element(*r)) for r in itertools.product(*map(range, extents))]
        assert all(v.dtype == numpy_dtype(dtype) for v in values), "elements of another dtype than the reduction's"
        wide = np.float32 if numpy_dtype(dtype).itemsize == 2 else numpy_dtype(dtype)
        if name in ("max", "min"):
            wide = numpy_dtype(dtype)
        stacked = np.stack(np.broadcast_arrays(*values))
        self.reduced = REDUCE[name].reduce(stacked, axis=0, dtype=wide).astype(numpy_dtype(dtype))
        return self.reduced


def _one_dtype(*values):
    """Plain ints are indices and fit any integer; else all operands have one dtype."""
    found = {np.asarray(v).dtype for v in values if type(v) is not int}
    assert len(found) <= 1, f"operands of {found}; a constant operand is e.const(value, x.dtype)"


class Source:
    """x(*index), which fails where an index is outside: rules clamp what they read."""

    def __init__(self, x):
        self.x = np.asarray(x)
        self.shape, self.dtype = self.x.shape, dtype_name(self.x.dtype)

    def __call__(self, *index):
        assert len(index) == len(self.shape), f"{len(index)} indices into {self.shape}"
        for k, n in zip(index, self.shape, strict=True):
            assert np.asarray(k).dtype.kind in "iu", f"an index of type {np.asarray(k).dtype}"
            assert np.all((np.asarray(k) >= 0) & (np.asarray(k) < n)), f"reads at {k} of {n}"
        return self.x[tuple(np.asarray(k) for k in index)]


def evaluate(op, arrays, attrs, index, algebra=None):
    """The rule of the op at an index."""
    algebra = algebra or NumpyAlgebra()
    found = op.lower(algebra, index, *map(Source, arrays), **attrs)
    assert algebra.reduced is None or found is algebra.reduced, "e.reduce is not the outermost thing"
    return np.asarray(found)


def indices(rng, shape, count=6):
    """A few indices into the shape, among them vectors of consecutive last indices."""
    if math.prod(shape) == 0:
        return
    for number in range(count):
        at = [int(rng.integers(n)) for n in shape]
        if shape and number % 2:
            lanes = min(4, shape[-1])
            at[-1] = np.arange(lanes, dtype=np.int32) + int(rng.integers(shape[-1] - lanes + 1))
        yield tuple(k if isinstance(k, np.ndarray) else np.int32(k) for k in at)
