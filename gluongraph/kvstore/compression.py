"""Gradient compression: what is sent of a gradient, and what is kept back for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluongraph import ops
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Node

DEFAULT_THRESHOLD = 0.5


def two_bit(g: Node, residual: Node, *, threshold: float) -> tuple[Node, Node]:
    """What is sent, 0 or ±threshold, and the new residual: all that has not been sent yet.

    r = residual + g;  q = T where r >= T, -T where r <= -T, else 0;  residual = r - q. (MXNet's "2bit": 1.58 bits an
    element on a wire. Within one process nothing travels; the numbers are those that distant devices would see.)
    """
    kept = residual + g
    below = ops.where(ops.less_equal(kept, -threshold), -threshold, 0.0)
    sent = ops.where(ops.greater_equal(kept, threshold), threshold, below)
    return sent, kept - sent


def threshold_of(params: Mapping[str, Any]) -> float:
    """The threshold in compression_params, {"type": "2bit", "threshold": 0.5}.

    Raises:
        MXNetError: another type, or a threshold that is not above 0.
    """
    help = 'compression_params={"type": "2bit", "threshold": 0.5}'
    if not isinstance(params, Mapping) or params.get("type") != "2bit":
        raise MXNetError(
            with_user_location(f"gradient compression by {params!r}: the one type there is is '2bit'", help=help)
        )
    threshold = float(params.get("threshold", DEFAULT_THRESHOLD))
    if not threshold > 0:
        raise MXNetError(
            with_user_location(f"gradient compression with threshold {threshold}: it must be above 0", help=help)
        )
    return threshold
