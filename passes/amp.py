"""Mixed precision: contractions of 16-bit operands, everything else in float32.

The pass works on a program and its gradients, before the updates are added: what the optimizer does is float32 in any
case, and so are the parameters. An op's class (`Op.numeric`) says what happens to it:

* low (matmul, convolutions and their gradients): float32 operands are rounded to 16 bit; products are summed in
  float32, and the sums are stored as they are;
* keep (elementwise work, movement, maxima of windows): computed in float32; the result of 16-bit values is a 16-bit
  value again where it goes through memory;
* full (norms, softmax, exponentials; and all reductions): float32 values from float32 arithmetic.

A value that a contraction reads is rounded once, and everybody else reads the rounded one, so that one copy of 2 bytes
an element is all that memory sees of it. Results of the graph are never rounded: gradients of parameters are the sums
of their contractions. Operands with `keep_precision` keep a contraction, and its gradients, in float32.

Attention is taken apart into such ops, but where a kernel takes it whole in 16 bit, which does the same inside: then it
is like a contraction. Its results are rounded by the kernel itself where all that read them read 16 bit.
"""

from __future__ import annotations

import math

import ml_dtypes

from gluongraph import ops
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.rewrite import in_bodies, made_from, rebuild, value
from gluongraph.passes.inline import Keep, inline

_WIDE = "f32"
# What has these kinds is rounded where a contraction reads it, and nowhere else: the gradient of a maximum compares it
# with what it was chosen from. (The maximum of a window is chosen from rounded numbers.)
_EXACT = frozenset({"leaf", "reduce", "window", "index"})


def amp(graph: Graph, low: str, kernels: Keep = lambda n: False) -> Graph:
    """The graph with operands of contractions in `low`, "bf16" or "f16". Inputs and results keep their types.

    `kernels` says of a composite of 16-bit operands whether there is a kernel for it as it is.
    """

    def keep(n: Node) -> bool:
        return n.op.kind != "composite" or n.op.numeric != "low" or (is_low(n) and kernels(_in(low, n)))

    return _Caster(rebuild(inline(graph, keep=keep), lambda n: _loop(n, low, kernels)), low).run()


def _loop(n: Node, low: str, kernels: Keep) -> Node:
    """A loop with its body cast."""
    return n if any(map(_is_pinned, n.src)) else in_bodies(n, lambda body: amp(body, low, kernels))


def _in(low: str, n: Node) -> Node:
    """n on operands of that dtype."""
    types = [TensorType(s.shape, low if s.dtype == _WIDE else s.dtype) for s in n.src]
    return n.op(*(ops.input(f"x{i}", each) for i, each in enumerate(types)), **n.attrs)


class _Caster:
    def __init__(self, graph: Graph, low: str):
        self.graph, self.low = graph, low
        self.largest = float(ml_dtypes.finfo(numpy_dtype(low)).max)
        self.order, self.users = graph.nodes(), graph.users()
        self.depth = self._depth()
        self.final = self._final()
        self.multiplied = self._multiplied()
        self.narrow: set[Node] = set()
        for n in self.order:
            if self._is_narrow(n):
                self.narrow.add(n)

    # -- what is decided beforehand

    def _depth(self) -> dict[Node, int]:
        """Behind how many contractions, sums and the like a value comes, at the most."""
        found: dict[Node, int] = {}
        for n in self.order:
            heavy = not (_is_light(n) or n.op.kind in ("movement", "leaf"))
            found[n] = max((found[s] for s in n.src), default=0) + heavy
        return found

    def _final(self) -> set[Node]:
        """Results, and what only becomes results: gradients that are added up or moved about."""
        found = set(self.graph.results)
        for n in reversed(self.order):
            users = self.users[n]
            if users and all(u in found and u.op.kind in ("elementwise", "movement") for u in users):
                found.add(n)
        return found

    def _multiplied(self) -> set[Node]:
        """Values that a contraction in 16 bit reads, themselves or moved about."""
        found: set[Node] = set()
        for n in reversed(self.order):
            if is_low(n) or (n in found and _moves(n)):
                found.update(s for s in n.src if not isinstance(s.type, tuple) and s.dtype == _WIDE)
        return found

    def _is_narrow(self, n: Node) -> bool:
        """Is n a 16-bit value where it goes through memory?"""
        if isinstance(n.type, tuple) or n.dtype != _WIDE or (n.op.kind in _EXACT and not _moves(n)):
            return False
        if n in self.multiplied or is_low(n):
            return n.op.name != "keep_precision"
        kept = n.op.numeric == "keep" and (n.op.kind in ("elementwise", "composite") or _moves(n))
        if not kept or n.op.name == "cast":
            return False
        deciding = [s for s in n.src if s.dtype == _WIDE and not self._goes_along(s, n)]
        return bool(deciding) and self.narrow.issuperset(deciding)

    def _goes_along(self, s: Node, n: Node) -> bool:
        """Does s leave it to others whether n is narrow? A number that 16 bits can hold, random bits, a bias."""
        if (number := value(s)) is not None:
            return not math.isfinite(number) or abs(number) <= self.largest
        spread = s.op.name == "expand"
        while s.op.name in ("expand", "reshape"):
            (s,) = s.src
        if s.op.name == "mul":  # what dropout multiplies with
            return all(self._goes_along(x, n) for x in s.src)
        bias = spread and s.op.name == "input" and n.op.name == "add"
        return bias or (s.op.kind == "random" and s.op.numeric == "keep")

    def _is_rounded(self, n: Node) -> bool:
        """Is a narrow value rounded? Not on its way to a result, nor where all readers are elementwise and come behind
        no other contraction or sum than it: they will find it in a register."""
        if n not in self.narrow or n in self.multiplied:
            return n in self.narrow
        beside = all(_is_light(u) and self.depth[u] == self.depth[n] for u in self.users[n])
        return n not in self.final and not beside

    # -- what is made

    def run(self) -> Graph:
        """Every value in its own dtype; a rounded one as the widened form of its 16 bits."""
        new: dict[Node, Node] = {}
        exact: dict[Node, Node] = {}  # results before they are rounded
        origins = dict(self.graph.origins)
        known: set[Node] = set(self.graph.inputs.values())
        for n in self.order:
            made = exact[n] = self._made(n, tuple(new[s] for s in n.src))
            new[n] = ops.cast(self.narrowed(made), _WIDE) if self._is_rounded(n) else made
            if (origin := origins.get(n)) is not None:
                for each in made_from(new[n], known):
                    origins.setdefault(each, origin)
            known.update((made, new[n]))
        outputs = {k: exact[n] for k, n in self.graph.outputs.items()}
        updates = {k: exact[n] for k, n in self.graph.updates.items()}
        return self.graph.with_results(outputs, updates, origins)

    def _made(self, n: Node, src: tuple[Node, ...]) -> Node:
        if is_low(n):
            sums = {} if self._hands_on_narrow(n) else {"dtype": _WIDE}
            made = n.op(*map(self.narrowed, src), **n.attrs, **sums)
            return made if isinstance(made.type, tuple) else ops.cast(made, _WIDE)
        if n.op.name == "get_tuple_element" and is_low(n.src[0]):
            return ops.cast(n.on(src), _WIDE)
        if n in self.narrow and _moves(n) and all(s.dtype != _WIDE or self._is_held(s) for s in src):
            return ops.cast(n.on(tuple(map(self.narrowed, src))), _WIDE)
        return n.on(src)

    def _hands_on_narrow(self, n: Node) -> bool:
        """Does a composite with a kernel of its own round its results? A contraction leaves that to its epilogue."""
        results = self.users[n] if isinstance(n.type, tuple) else [n]
        return n.op.kind == "composite" and all(self._is_rounded(r) and r not in self.final for r in results)

    def _is_held(self, s: Node) -> bool:
        """Is s a 16-bit value, widened?"""
        return s.op.name == "cast" and s.src[0].dtype == self.low

    def narrowed(self, s: Node) -> Node:
        """s in 16 bit, if it is float32."""
        if self._is_held(s):
            return s.src[0]
        return ops.cast(s, self.low) if s.dtype == _WIDE else s


def is_low(n: Node) -> bool:
    """Is n a contraction, or a composite of some, of float32 operands, none of them pinned? Masks may be among them."""
    if n.op.kind not in ("contraction", "composite") or n.op.numeric != "low":
        return False
    return all(s.dtype in (_WIDE, "bool") for s in n.src) and not any(map(_is_pinned, n.src))


def _moves(n: Node) -> bool:
    """Does n work on 16 bits as they are?"""
    return n.op.kind == "movement" or "moves" in n.op.traits


def _is_light(n: Node) -> bool:
    """Is n elementwise, or a composite that is, by its class and shape, such as gelu?"""
    like = n.op.kind == "composite" and n.op.numeric == "keep" and all(s.types == n.types for s in n.src[:1])
    return n.op.kind == "elementwise" or like


def _is_pinned(n: Node) -> bool:
    while n.op.kind == "movement":
        n = n.src[0]
    return n.op.name == "keep_precision"
