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
    """Which composites have a kernel of the target as they are, and need not be taken apart."""
    return lambda n: any(rule.takes_composite(n, target) for rule in target.rules)


def preferred_lanes(target: Target) -> Callable[[Node, bool], int]:
    """How many images kernels of the target want side by side for a convolution or a pooling, of which a source has
    been `met` that lies so, or none; 0 as they are."""
    return lambda n, met: next((lanes for rule in target.rules if (lanes := rule.preferred_lanes(n, target, met))), 0)


def offer(target: Target) -> SelectionCache:
    """What a target offers for a group: the candidate of the first rule that claims it, or None."""
    return selection_cache(target, _selector(target))


def tuning_variants(group: Group, candidate: Candidate, target: Target) -> tuple[Candidate, ...]:
    """The other ways to write a group that the candidate's rule has."""
    variants = rule_of(candidate, target).variants(group, target)
    claimed = {setting: rule.claim(group, target) for setting, rule in variants.items()}
    return tuple(replace(other, setting=setting) for setting, other in claimed.items() if other is not None)


@once
def _selector(target: Target) -> Select:
    return lambda group: claim(group, target)
