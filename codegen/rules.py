"""The kernel rules of the CPU in the order in which they are asked; the last takes any single operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache as once

from gluongraph.codegen.cache.selections import Ask, Offers, offers
from gluongraph.codegen.contraction.attention import ATTENTION
from gluongraph.codegen.contraction.attention import suits as attends
from gluongraph.codegen.contraction.contraction import CONV, GEMM
from gluongraph.codegen.contraction.contraction import images_beside as convolved_beside
from gluongraph.codegen.cpu.index_ops import FALLBACK, INDEX_RULES
from gluongraph.codegen.cpu.loops import LOOP
from gluongraph.codegen.cpu.pool import POOL
from gluongraph.codegen.cpu.pool import images_beside as pooled_beside
from gluongraph.codegen.cpu.reduce import REDUCE
from gluongraph.codegen.cpu.rowwise import ROWWISE
from gluongraph.codegen.cpu.scan import scan_rule
from gluongraph.codegen.cpu.scatter import SCATTER
from gluongraph.codegen.cuda import rules
from gluongraph.codegen.rule import Bindings, Cpu, Rule
from gluongraph.codegen.targets import Target
from gluongraph.codegen.tvm.tir import Kernel
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group


def emit(k: Kernel, group: Group, candidate: Candidate, bindings: Bindings, cpu: Cpu) -> None:
    """Write the loops of a group into a kernel, by the rule of the candidate and its setting."""
    rule = BY_NAME[candidate.rule]
    if candidate.setting:
        rule = rule.settings(group, cpu)[candidate.setting]
    rule.emit(k, group, bindings, cpu)


RULES: tuple[Rule, ...] = (
    GEMM,
    CONV,
    ATTENTION,
    POOL,
    ROWWISE,
    REDUCE,
    LOOP,
    SCATTER,
    *INDEX_RULES,
    scan_rule(emit),
    FALLBACK,
)
BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}


def whole(target: Target) -> Callable[[Node], bool]:
    """Which composites have a kernel of the target as they are, and need not be taken apart."""
    cpu = target.cpu
    return (lambda n: False) if cpu is None else (lambda n: attends(n, cpu))


def beside(target: Target) -> Callable[[Node, bool], int]:
    """How many images kernels of the target want side by side for a convolution or a pooling, of which a source has
    been `met` that lies so, or none; 0 as they are."""
    cpu = target.cpu
    if cpu is None:
        return lambda n, met: 0
    return lambda n, met: convolved_beside(n, cpu, met) or (pooled_beside(n, cpu) if met else 0)


def offer(target: Target) -> Offers:
    """What a target offers for a group: the candidate of the first rule that claims it, or None."""
    return offers(target, _asker(target))


def alternatives(group: Group, candidate: Candidate, target: Target) -> tuple[Candidate, ...]:
    """The other ways to write a group that the candidate's rule has; none on a GPU."""
    cpu, found = target.cpu, []
    if cpu is not None:
        for setting, rule in BY_NAME[candidate.rule].settings(group, cpu).items():
            if (other := rule.claim(group, cpu)) is not None:
                found.append(replace(other, setting=setting))
    return tuple(found)


@once
def _asker(target: Target) -> Ask:
    cpu = target.cpu
    if cpu is None:
        return rules.claim
    return lambda group: next((c for rule in RULES if (c := rule.claim(group, cpu)) is not None), None)
