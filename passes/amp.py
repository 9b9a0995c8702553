"""Mixed precision: contractions of 16-bit operands, everything else in float32.

The pass works on a program and its gradients, before the updates are added: what the optimizer does is float32 in any
case, and so are the parameters. An op's class (`Op.numeric`) says what happens to it:

* low (matmul, convolutions and their gradients): float32 operands are rounded to 16 bit; products are summed in
  float32, and the sums are stored as they are;
* keep (elementwise work, movement, maxima of windows): computed in float32; the result of 16-bit values is again stored
  as a 16-bit value;
* full (norms, softmax, exponentials; and all reductions): float32 values from float32 arithmetic.

A value that a contraction reads is rounded once, and all other readers read the rounded value too, so that memory
contains only one 16-bit copy of it. Results of the graph are never rounded: gradients of parameters are the float32
sums of their contractions. Operands with `keep_precision` keep a contraction, and its gradients, in float32.

Attention is expanded into such ops, unless there is a kernel for it with 16-bit operands, which does the same inside:
then it is handled like a contraction. The kernel rounds its results itself if all readers read 16-bit values.
"""

from __future__ import annotations

import math

import ml_dtypes

from gluongraph import ops
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.rewrite import in_bodies, made_from, rebuild, value
from gluongraph.passes.inline import Keep, inline

_FULL = "f32"
# Values of these kinds are rounded only where a contraction reads them: the gradient of a maximum compares it with the
# values from which it was selected. (The maximum of a window is selected from rounded values.)
_EXACT = frozenset({"leaf", "reduce", "window", "index"})


def amp(graph: Graph, low: str, kernels: Keep = lambda n: False) -> Graph:
    """Return the graph with operands of contractions in `low`, "bf16" or "f16". Inputs and results keep their types.

    `kernels(n)`: is there a kernel for a composite n of 16-bit operands?
    """

    def keep(n: Node) -> bool:
        return n.op.kind != "composite" or n.op.numeric != "low" or (is_low(n) and kernels(_on_dtype(low, n)))

    return _Caster(rebuild(inline(graph, keep=keep), lambda n: _cast_loop(n, low, kernels)), low).run()


def _cast_loop(n: Node, low: str, kernels: Keep) -> Node:
    """Return a loop with its body in mixed precision."""
    return n if any(map(_keeps_precision, n.src)) else in_bodies(n, lambda body: amp(body, low, kernels))


def _on_dtype(low: str, n: Node) -> Node:
    """Return n on operands of that dtype."""
    types = [TensorType(s.shape, low if s.dtype == _FULL else s.dtype) for s in n.src]
    return n.op(*(ops.input(f"x{i}", each) for i, each in enumerate(types)), **n.attrs)


class _Caster:
    def __init__(self, graph: Graph, low: str):
        self.graph, self.low = graph, low
        self.largest = float(ml_dtypes.finfo(numpy_dtype(low)).max)
        self.order, self.users = graph.nodes(), graph.users()
        self.depth = self._depth()
        self.final = self._final()
        self.contraction_operands = self._contraction_operands()
        self.low_values: set[Node] = set()
        for n in self.order:
            if self._is_low_value(n):
                self.low_values.add(n)

    # -- analysis

    def _depth(self) -> dict[Node, int]:
        """Return for each value the largest number of non-elementwise computing ops on a path to it."""
        found: dict[Node, int] = {}
        for n in self.order:
            heavy = not (_is_light(n) or n.op.kind in ("movement", "leaf"))
            found[n] = max((found[s] for s in n.src), default=0) + heavy
        return found

    def _final(self) -> set[Node]:
        """Return the results, and values that only elementwise work or movement on results reads: accumulated
        gradients."""
        found = set(self.graph.results)
        for n in reversed(self.order):
            users = self.users[n]
            if users and all(u in found and u.op.kind in ("elementwise", "movement") for u in users):
                found.add(n)
        return found

    def _contraction_operands(self) -> set[Node]:
        """Return the values that a 16-bit contraction reads, directly or through movement."""
        found: set[Node] = set()
        for n in reversed(self.order):
            if is_low(n) or (n in found and _moves(n)):
                found.update(s for s in n.src if not isinstance(s.type, tuple) and s.dtype == _FULL)
        return found

    def _is_low_value(self, n: Node) -> bool:
        """Is n stored as a 16-bit value?"""
        if isinstance(n.type, tuple) or n.dtype != _FULL or (n.op.kind in _EXACT and not _moves(n)):
            return False
        if n in self.contraction_operands or is_low(n):
            return n.op.name != "keep_precision"
        kept = n.op.numeric == "keep" and (n.op.kind in ("elementwise", "composite") or _moves(n))
        if not kept or n.op.name == "cast":
            return False
        deciding = [s for s in n.src if s.dtype == _FULL and not self._is_neutral(s, n)]
        return bool(deciding) and self.low_values.issuperset(deciding)

    def _is_neutral(self, s: Node, n: Node) -> bool:
        """Is s irrelevant to whether n is a 16-bit value: a constant within range, random values, a bias?"""
        if (number := value(s)) is not None:
            return not math.isfinite(number) or abs(number) <= self.largest
        spread = s.op.name == "expand"
        while s.op.name in ("expand", "reshape"):
            (s,) = s.src
        if s.op.name == "mul":  # the mask and scale of dropout
            return all(self._is_neutral(x, n) for x in s.src)
        bias = spread and s.op.name == "input" and n.op.name == "add"
        return bias or (s.op.kind == "random" and s.op.numeric == "keep")

    def _is_rounded(self, n: Node) -> bool:
        """Is n rounded to 16 bits? Of the low values not those that only become results, nor those whose readers are
        all elementwise and at the same depth: they will be in the same kernel."""
        if n not in self.low_values or n in self.contraction_operands:
            return n in self.low_values
        beside = all(_is_light(u) and self.depth[u] == self.depth[n] for u in self.users[n])
        return n not in self.final and not beside

    # -- rewriting

    def run(self) -> Graph:
        """Return the rewritten graph; a rounded value is a cast of its 16-bit form to float32."""
        new: dict[Node, Node] = {}
        exact: dict[Node, Node] = {}  # results before they are rounded
        origins = dict(self.graph.origins)
        known: set[Node] = set(self.graph.inputs.values())
        for n in self.order:
            rewritten = exact[n] = self._rewritten(n, tuple(new[s] for s in n.src))
            new[n] = ops.cast(self.as_low(rewritten), _FULL) if self._is_rounded(n) else rewritten
            if (origin := origins.get(n)) is not None:
                for each in made_from(new[n], known):
                    origins.setdefault(each, origin)
            known.update((rewritten, new[n]))
        outputs = {k: exact[n] for k, n in self.graph.outputs.items()}
        updates = {k: exact[n] for k, n in self.graph.updates.items()}
        return self.graph.with_results(outputs, updates, origins)

    def _rewritten(self, n: Node, src: tuple[Node, ...]) -> Node:
        if is_low(n):
            sums = {} if self._rounds_in_kernel(n) else {"dtype": _FULL}
            rewritten = n.op(*map(self.as_low, src), **n.attrs, **sums)
            return rewritten if isinstance(rewritten.type, tuple) else ops.cast(rewritten, _FULL)
        if n.op.name == "get_tuple_element" and is_low(n.src[0]):
            return ops.cast(n.on(src), _FULL)
        if n in self.low_values and _moves(n) and all(s.dtype != _FULL or self._is_converted(s) for s in src):
            return ops.cast(n.on(tuple(map(self.as_low, src))), _FULL)
        return n.on(src)

    def _rounds_in_kernel(self, n: Node) -> bool:
        """Does the kernel of a composite round its results? In a contraction the epilogue does it."""
        results = self.users[n] if isinstance(n.type, tuple) else [n]
        return n.op.kind == "composite" and all(self._is_rounded(r) and r not in self.final for r in results)

    def _is_converted(self, s: Node) -> bool:
        """Is s a 16-bit value cast to float32?"""
        return s.op.name == "cast" and s.src[0].dtype == self.low

    def as_low(self, s: Node) -> Node:
        """Return s rounded to 16 bits, if it is float32."""
        if self._is_converted(s):
            return s.src[0]
        return ops.cast(s, self.low) if s.dtype == _FULL else s


def is_low(n: Node) -> bool:
    """Is n a contraction, or a composite of contractions, of float32 operands without `keep_precision`, or masks?"""
    if n.op.kind not in ("contraction", "composite") or n.op.numeric != "low":
        return False
    return all(s.dtype in (_FULL, "bool") for s in n.src) and not any(map(_keeps_precision, n.src))


def _moves(n: Node) -> bool:
    """Does n move 16-bit values without arithmetic?"""
    return n.op.kind == "movement" or "moves" in n.op.traits


def _is_light(n: Node) -> bool:
    """Is n elementwise, or an elementwise composite, such as gelu?"""
    like = n.op.kind == "composite" and n.op.numeric == "keep" and all(s.types == n.types for s in n.src[:1])
    return n.op.kind == "elementwise" or like


def _keeps_precision(n: Node) -> bool:
    while n.op.kind == "movement":
        n = n.src[0]
    return n.op.name == "keep_precision"
