"""The kernel rules of CPUs, in the order in which they are tried; the last claims any single op."""

from __future__ import annotations

from gluongraph.codegen.contraction.attention import ATTENTION
from gluongraph.codegen.contraction.contraction import CONV, GEMM
from gluongraph.codegen.cpu.index_ops import FALLBACK, INDEX_RULES
from gluongraph.codegen.cpu.loops import LOOP
from gluongraph.codegen.cpu.pool import POOL
from gluongraph.codegen.cpu.reduce import REDUCE
from gluongraph.codegen.cpu.rowwise import ROWWISE
from gluongraph.codegen.cpu.scatter import SCATTER
from gluongraph.codegen.rule import Cpu, Rule
from gluongraph.codegen.scan import SCAN

RULES: tuple[Rule[Cpu], ...] = (
    GEMM,
    CONV,
    ATTENTION,
    POOL,
    ROWWISE,
    REDUCE,
    LOOP,
    SCATTER,
    *INDEX_RULES,
    SCAN,
    FALLBACK,
)
