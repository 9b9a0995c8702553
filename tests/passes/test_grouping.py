"""Groups in the making: what they know of each other, against a walk over all that they hold."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from gluongraph import ops
from gluongraph.ir.graph import Node, TensorType
from gluongraph.passes.fuse_groups import FusionGroup, FusionGroups


def grown(seed: int) -> FusionGroups:
    """Forty nodes on random sources, each in a random group that may hold it; some groups merged where they may be."""
    dice = random.Random(seed)
    nodes: list[Node] = [ops.input("x", TensorType((2,)))]
    drafts = FusionGroups(lambda n: n.src)
    for _ in range(40):
        n = ops.add(dice.choice(nodes), dice.choice(nodes[-6:]))
        if n in nodes:
            continue
        nodes.append(n)
        open = [d for d in drafts.live() if drafts.can_join(n, d)]
        if open and dice.random() < 0.5:
            drafts.join(n, dice.choice(open))
        else:
            drafts.start(n, "loop", n.shape)
        pair = dice.choices(drafts.live(), k=2)
        if pair[0] is not pair[1] and dice.random() < 0.3 and drafts.can_merge(*pair):
            drafts.merge(*pair)
    return drafts


def walked(drafts: FusionGroups) -> nx.DiGraph[FusionGroup]:
    """The groups, with an edge to each from those that it reads."""
    found: nx.DiGraph[FusionGroup] = nx.DiGraph()
    found.add_nodes_from(drafts.live())
    for draft in drafts.live():
        homes = (drafts.find(s) for n in draft.nodes for s in n.src)
        found.add_edges_from((home, draft) for home in homes if home is not None and home is not draft)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_groups_know_whom_they_need(seed: int) -> None:
    drafts = grown(seed)
    walk = walked(drafts)
    assert nx.is_directed_acyclic_graph(walk)
    for draft in drafts.live():
        assert {d for d in drafts.live() if draft.needs(d)} == nx.ancestors(walk, draft)
        assert draft.edges == {s for n in draft.nodes for s in n.src} - set(draft.nodes)


@pytest.mark.parametrize("seed", range(20))
def test_groups_with_a_third_between_them_stay_apart(seed: int) -> None:
    drafts = grown(seed)
    walk = walked(drafts)
    for a in drafts.live():
        for b in drafts.live():
            if a is not b and drafts.can_merge(a, b):
                assert nx.is_directed_acyclic_graph(nx.contracted_nodes(walk, a, b, self_loops=False))
