"""The table of rules for padded arrays: for each op, where the padding of its result lies, and which source is masked.

A rule gets the walk, the node in both traces and the rewritten sources, and gives the rewritten results. Elementwise
ops, random numbers and composites have no rows: the first keep the padding of their sources, numbers are as good at any
place, and composites are as their bodies (`Masking`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gluongraph.ir.graph import OPS

Function = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """A rule, and the attributes of the op that may depend on lengths."""

    function: Function
    varies: frozenset[str] = frozenset()


RULES: dict[str, Rule] = {}
_COMMUNICATES = "it works across ranks, each of which has lengths of its own"
# Ops that are not computed on padded arrays, and why.
REFUSED = {
    **dict.fromkeys(("allreduce", "all_reduce", "reduce_scatter", "all_gather"), _COMMUNICATES),
    **dict.fromkeys(("pack_codes", "unpack_codes"), "codes are packed across elements"),
    "first_of": "it compares all row numbers with each other",
    "put_rows": "rows that are padding would be written",
    "random_word": "it numbers its elements",
    "fused": "only passes make it",
    **{name: "only passes make it" for name in OPS if name.endswith("_blocks")},
}


def rule(*names: str, varies: tuple[str, ...] = ()) -> Callable[[Function], Function]:
    """Decorator: the rule of these ops."""

    def enter(function: Function) -> Function:
        for name in names:
            if name not in OPS or name in RULES:
                raise ValueError(f"a rule for {name!r}, which is no op or has a rule")
            RULES[name] = Rule(function, frozenset(varies))
        return function

    return enter
