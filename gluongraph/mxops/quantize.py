"""Numbers of 8 bits for ranges of float32, and back: MXNet's quantize and dequantize."""

from __future__ import annotations

from gluongraph import ops
from gluongraph.dtypes import dtype_name
from gluongraph.errors import DTypeError, with_user_location
from gluongraph.ir.graph import Node

LIMITS = {"i8": 127.0, "u8": 255.0}  # int8 is centred on 0, from -127 to 127


def _all(number: Node, shape: tuple[int, ...]) -> Node:
    return ops.expand(ops.reshape(number, (1,) * len(shape)), shape)


def _largest(low: Node, high: Node) -> Node:
    return ops.maximum(ops.abs(low), ops.abs(high))


def _kind(op: str, dtype: str) -> str:
    if dtype not in LIMITS:
        raise DTypeError(with_user_location(f"{op}: numbers of 8 bits are int8 or uint8, not {dtype}"))
    return dtype


def quantize(data: Node, min_range: Node, max_range: Node, out_type: str = "uint8") -> tuple[Node, Node, Node]:
    """Whole numbers of 8 bits for data between min_range and max_range (1,), and the range that they stand for.

    uint8: (x - min) 255 / (max - min) + 0.5, cut off; int8: sign(x) min(|x| 127 / m + 0.5, 127), cut off, where m is
    the larger of |min| and |max|, and the range -m to m.
    """
    kind = _kind("quantize", dtype_name(out_type))
    if kind == "u8":
        scale = ops.div(LIMITS[kind], ops.sub(max_range, min_range))
        moved = ops.mul(ops.sub(data, _all(min_range, data.shape)), _all(scale, data.shape))
        return ops.cast(ops.floor(ops.add(moved, 0.5)), kind), min_range, max_range
    most = _largest(min_range, max_range)
    size = ops.mul(ops.abs(data), _all(ops.div(LIMITS[kind], most), data.shape))
    whole = ops.floor(ops.minimum(ops.add(size, 0.5), LIMITS[kind]))
    signed = ops.where(ops.less(data, 0.0), ops.neg(whole), whole)
    return ops.cast(signed, kind), ops.neg(most), most


def dequantize(data: Node, min_range: Node, max_range: Node, out_type: str = "float32") -> Node:
    """The numbers that those of 8 bits stand for: q (max - min) / 255 + min of uint8, q m / 127 of int8."""
    kind, wide = _kind("dequantize", data.dtype), ops.cast(data, min_range.dtype)
    if kind == "u8":
        scale = ops.div(ops.sub(max_range, min_range), LIMITS[kind])
        return ops.add(ops.mul(wide, _all(scale, data.shape)), _all(min_range, data.shape))
    return ops.mul(wide, _all(ops.div(_largest(min_range, max_range), LIMITS[kind]), data.shape))
