"""The operators: one statement each, in a file for each family; and the builders of graphs.

Builders take nodes and Python numbers, broadcast as numpy does, and count axes from either end.

>>> from gluongraph import ops
>>> from gluongraph.ir.graph import TensorType
>>> x = ops.input("x", TensorType((2, 3)))
>>> ops.sum(ops.exp(x) * 2.0, axis=-1)
<sum(mul) : f32[2]>
"""

from gluongraph.ir.composite import inline
from gluongraph.ir.graph import OPERATORS
from gluongraph.ops.blocked_layout import into_blocks, out_of_blocks
from gluongraph.ops.builders import broadcast_to
from gluongraph.ops.checked_index import checked_index
from gluongraph.ops.collective import all_gather, all_reduce, allreduce, reduce_scatter
from gluongraph.ops.constants import const, constant, full, input, iota, literal, ones, zeros
from gluongraph.ops.control import call, depends_on, fused, get_tuple_element, get_tuple_elements
from gluongraph.ops.conv import conv2d, conv2d_data_grad, conv2d_weight_grad
from gluongraph.ops.conv_nd import conv, conv_transpose
from gluongraph.ops.elementwise import (
    abs,
    add,
    cast,
    ceil,
    cos,
    div,
    erf,
    exp,
    expm1,
    floor,
    floordiv,
    isfinite,
    isnan,
    log,
    log1p,
    maximum,
    maximum_even,
    minimum,
    minimum_even,
    mod,
    mul,
    neg,
    normal_cdf,
    normal_pdf,
    pow,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sqrt,
    stop_gradient,
    sub,
    tanh,
)
from gluongraph.ops.index import gather, one_hot, scatter_add, take
from gluongraph.ops.linalg import cholesky, gelqf, inverse, slogdet, solve_triangular, syevd
from gluongraph.ops.logic import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    not_equal,
    where,
)
from gluongraph.ops.matmul import matmul
from gluongraph.ops.movement import (
    concat,
    expand,
    expand_dims,
    flip,
    moveaxis,
    pad,
    part,
    reshape,
    slice,
    squeeze,
    stack,
    transpose,
)
from gluongraph.ops.nn import attention, dropout, embedding, gelu, keep_precision
from gluongraph.ops.normalization import batch_norm, batch_norm_inference, group_norm, layer_norm
from gluongraph.ops.output import output
from gluongraph.ops.packing import pack_codes, unpack_codes
from gluongraph.ops.pool import avg_pool2d, max_pool2d
from gluongraph.ops.pool_nd import avg_pool, max_pool, sum_pool
from gluongraph.ops.random import bernoulli, normal, random_bits, uniform
from gluongraph.ops.reduce import amax, amin, argmax, argmin, cumsum, max, mean, min, prod, sum
from gluongraph.ops.rounding import round_by_chance
from gluongraph.ops.rows import first_of, put_rows
from gluongraph.ops.scan import scan
from gluongraph.ops.softmax import log_softmax, softmax, softmax_cross_entropy
from gluongraph.ops.sort import argsort

OPERATORS.update(add=add, sub=sub, mul=mul, div=div, pow=pow, neg=neg)

__all__ = [
    "abs",
    "add",
    "all_gather",
    "all_reduce",
    "allreduce",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "argsort",
    "attention",
    "avg_pool",
    "avg_pool2d",
    "batch_norm",
    "batch_norm_inference",
    "bernoulli",
    "broadcast_to",
    "call",
    "cast",
    "ceil",
    "checked_index",
    "cholesky",
    "concat",
    "const",
    "constant",
    "conv",
    "conv2d",
    "conv2d_data_grad",
    "conv2d_weight_grad",
    "conv_transpose",
    "cos",
    "cumsum",
    "depends_on",
    "div",
    "dropout",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand",
    "expand_dims",
    "expm1",
    "first_of",
    "flip",
    "floor",
    "floordiv",
    "full",
    "fused",
    "gather",
    "gelqf",
    "gelu",
    "get_tuple_element",
    "get_tuple_elements",
    "greater",
    "greater_equal",
    "group_norm",
    "inline",
    "input",
    "into_blocks",
    "inverse",
    "iota",
    "isfinite",
    "isnan",
    "keep_precision",
    "layer_norm",
    "less",
    "less_equal",
    "literal",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "matmul",
    "max",
    "max_pool",
    "max_pool2d",
    "maximum",
    "maximum_even",
    "mean",
    "min",
    "minimum",
    "minimum_even",
    "mod",
    "moveaxis",
    "mul",
    "neg",
    "normal",
    "normal_cdf",
    "normal_pdf",
    "not_equal",
    "one_hot",
    "ones",
    "out_of_blocks",
    "output",
    "pack_codes",
    "pad",
    "part",
    "pow",
    "prod",
    "put_rows",
    "random_bits",
    "reduce_scatter",
    "relu",
    "reshape",
    "round",
    "round_by_chance",
    "rsqrt",
    "scan",
    "scatter_add",
    "sigmoid",
    "sign",
    "sin",
    "slice",
    "slogdet",
    "softmax",
    "softmax_cross_entropy",
    "solve_triangular",
    "sqrt",
    "squeeze",
    "stack",
    "stop_gradient",
    "sub",
    "sum",
    "sum_pool",
    "syevd",
    "take",
    "tanh",
    "transpose",
    "uniform",
    "unpack_codes",
    "where",
    "zeros",
]
