"""Gradient compression: what is sent of a gradient, and what is kept back for the next one.

| type | sent of a value v | bits | kept back |
|---|---|---|---|
| "2bit" | T if v >= T, -T if v <= -T, else 0 | 2 | v - what was sent |
| "1bit" | 1 if v > T, else -1 | 1 | v - what was sent |
| "sign" | 1 if v > 0, else -1; the result is the sign of the sum: 1, -1, or 0 where as many say 1 as -1 | 1 | nothing |
| "fp16", "bf16" | v as a number of 16 bits; sums are rounded to 16 bits once | 16 | nothing |

T is the threshold, v the gradient plus what has been kept back of the ones before it (error feedback), so that over
many steps everything is sent. The first two are MXNet's. Gradients are those of the summed loss, before they are
divided by the batch size; T is in their units: about as large as large elements are. Much smaller, most of the gradient
arrives late, which momentum makes unstable. "sign" is the majority vote of signSGD (Bernstein, Wang, Azizzadenesheli,
Anandkumar, 2018). One bit has no code for 0: a gradient of exactly 0 counts as -1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gluongraph import ops
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.collective import shard_size

DEFAULT_THRESHOLD = 0.5
TYPES = ("2bit", "1bit", "sign", "fp16", "bf16")
_BITS = {"2bit": 2, "1bit": 1, "sign": 1}
_LOW = {"fp16": "f16", "bf16": "bf16"}


@dataclass(frozen=True)
class Compression:
    """A type of compression, its threshold, and what sends: each device of a process, or each worker the sum of its
    devices (`of_workers`)."""

    type: str
    threshold: float = DEFAULT_THRESHOLD
    of_workers: bool = False

    @property
    def keeps_residual(self) -> bool:
        """Is what was not sent added to the next gradient?"""
        return self.type in ("2bit", "1bit")

    @property
    def low(self) -> str | None:
        """The 16-bit dtype in which gradients are sent; None if they are sent as codes."""
        return _LOW.get(self.type)

    @property
    def bits(self) -> int:
        """The bits of a code."""
        return _BITS[self.type]

    @property
    def limit(self) -> float:
        """The value by which codes are chosen."""
        return 0.0 if self.type == "sign" else self.threshold

    @property
    def unit(self) -> float:
        """The value of a code."""
        return self.threshold if self.type == "2bit" else 1.0

    def check(self, key: object, ty: TensorType) -> None:
        """Refuse gradients of another dtype than float32, of which there are no codes.

        Raises:
            MXNetError: codes are sent, and the gradient is not float32.
        """
        if self.low is None and ty.dtype != "f32":
            message = f"gradient compression by {self.type!r} of {ty} (key {key!r})"
            raise MXNetError(with_user_location(message, help='it works on float32 alone; "bf16" and "fp16" on any'))

    def sent(self, value: Node) -> Node:
        """What arrives of a value, as a number of its dtype."""
        if self.low is not None:
            return ops.cast(ops.cast(value, self.low), value.dtype)
        if self.bits == 1:
            return ops.where(ops.greater(value, self.limit), self.unit, -self.unit)
        below = ops.where(ops.less_equal(value, -self.limit), -self.unit, 0.0)
        return ops.where(ops.greater_equal(value, self.limit), self.unit, below)

    def received(self, total: Node) -> Node:
        """What becomes of a sum of sent values."""
        if self.low is not None:
            return ops.cast(ops.cast(total, self.low), total.dtype)
        return ops.sign(total) if self.type == "sign" else total


def quantized(g: Node, residual: Node | None, compression: Compression) -> tuple[Node, Node | None]:
    """What arrives of a gradient, and the new residual."""
    value = g if residual is None else residual + g
    sent = compression.sent(value)
    return sent, None if residual is None else value - sent


def sums_of_sent(
    grads: Sequence[Node],
    residuals: Sequence[Node | None],
    compression: Compression,
    *,
    ranks: int = 1,
    bucket: int = 0,
) -> tuple[list[Node], list[Node | None]]:
    """The sums over all ranks of what they send of gradients, and this rank's new residuals.

    Codes of all gradients are sent by one `all_gather`: every rank receives those of all others and sums them, since a
    sum of codes is no code. So a rank sends `ranks` - 1 times as much as its codes are, and beyond some 30 ranks
    compression to 2 bits saves nothing. 16-bit gradients are summed by `allreduce`, in buckets as others are.
    """
    values = [g if r is None else r + g for g, r in zip(grads, residuals, strict=True)]
    if (low := compression.low) is not None:
        sums = [ops.allreduce(ops.cast(g, low), ranks=ranks, bucket=bucket) for g in values]
        return [ops.cast(s, g.dtype) for s, g in zip(sums, values, strict=True)], [None] * len(values)
    sent = [compression.sent(v) for v in values]
    kept = [None if r is None else v - s for v, s, r in zip(values, sent, residuals, strict=True)]
    sums = sent if ranks == 1 or not values else _exchanged_codes(values, compression, ranks)
    return [compression.received(s) for s in sums], kept


def _exchanged_codes(values: Sequence[Node], compression: Compression, ranks: int) -> list[Node]:
    """The sums over all ranks of what the codes of values stand for."""
    bits = compression.bits
    words = [ops.pack_codes(v, bits=bits, threshold=compression.limit) for v in values]
    starts = [sum(w.ty.size for w in words[:i]) for i in range(len(words))]
    size = sum(w.ty.size for w in words)
    shard = shard_size([TensorType((size,), "u32")], 1)  # equal parts of flat memory are aligned
    if shard > size:
        words.append(ops.zeros(TensorType((shard - size,), "u32")))
    (gathered,) = ops.all_gather(ops.concat(*words), ranks=ranks, shapes=((ranks * shard,),))
    rows = ops.reshape(gathered, (ranks, shard))
    return [
        ops.unpack_codes(rows, bits=bits, shape=v.shape, unit=compression.unit, first=start)
        for v, start in zip(values, starts, strict=True)
    ]


def compression_of(params: Mapping[str, Any], *, of_workers: bool = False) -> Compression:
    """The compression that compression_params ask for: {"type": "2bit", "threshold": 0.5}.

    Raises:
        MXNetError: there is no such type, or no such threshold.

    >>> compression_of({"type": "2bit"})
    Compression(type='2bit', threshold=0.5, of_workers=False)
    """
    help = 'compression_params={"type": "2bit", "threshold": 0.5}'
    kind = params.get("type") if isinstance(params, Mapping) else None
    if kind not in TYPES:
        types = ", ".join(map(repr, TYPES))
        message = f"gradient compression by {params!r}: the types are {types}"
        raise MXNetError(with_user_location(message, help=help))
    threshold = float(params.get("threshold", DEFAULT_THRESHOLD))
    if not math.isfinite(threshold) or (kind == "2bit" and threshold <= 0):
        wanted = "above 0" if kind == "2bit" else "a number"
        message = f"gradient compression by {kind!r} with threshold {threshold}: it must be {wanted}"
        raise MXNetError(with_user_location(message, help=help))
    return Compression(kind, threshold if kind in ("2bit", "1bit") else DEFAULT_THRESHOLD, of_workers)
