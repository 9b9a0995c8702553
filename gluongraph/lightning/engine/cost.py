"""What one update costs, by the plan that was compiled."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import MXNetError
from gluongraph.ir.cost_model import costs


def step_cost(step: Any) -> tuple[float | None, float | None]:
    """The floating-point operations and the bytes of a step's last program; None where there is none yet."""
    if step is None:
        return None, None
    try:
        plan = step.plan
    except MXNetError:
        return None, None
    found = costs(plan)
    return float(sum(c.flops for c in found)), float(sum(c.nbytes for c in found))
