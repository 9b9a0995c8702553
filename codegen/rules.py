"""Queries about a target's kernel rules, for the passes and the tuner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache as once

from gluongraph.codegen.cache.selections import Select, SelectionCache, selection_cache
from gluongraph.codegen.rule import Target, claim, rule_of
from gluongraph.ir.graph import Node
from gluongraph.ir.plan import Candidate, Group


def has_composite_kernel(target: Target) -> Callable[[Node], bool]:
    """Return the predicate of composites that have a kernel on the target, and are not inlined."""
    return lambda n: any(rule.takes_composite(n, target) for rule in target.rules)


def preferred_lanes(target: Target) -> Callable[[Node, bool], int]:
    """Return a function of a convolution or a pooling, and whether a source is already blocked: how many images kernels
    of the target want interleaved in memory (NCHWn); 0: the layout stays as it is."""
    return lambda n, source_is_blocked: next(
        (lanes for rule in target.rules if (lanes := rule.preferred_lanes(n, target, source_is_blocked))), 0
    )


def offer(target: Target) -> SelectionCache:
    """Return the function from a group to the candidate of the target's first rule that claims it, or None; cached."""
    return selection_cache(target, _selector(target))


def tuning_variants(group: Group, candidate: Candidate, target: Target) -> tuple[Candidate, ...]:
    """Return the tuning variants that the candidate's rule has for a group."""
    variants = rule_of(candidate, target).variants(group, target)
    claimed = {setting: rule.claim(group, target) for setting, rule in variants.items()}
    return tuple(replace(other, setting=setting) for setting, other in claimed.items() if other is not None)


@once
def _selector(target: Target) -> Select:
    return lambda group: claim(group, target)
