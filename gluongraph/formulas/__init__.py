"""The numbers of an update as formulas: what `scalars` of an optimizer and a schedule compute, as data.

They are traced as programs over arrays are: run on symbols instead of floats, they leave a `Tape`, which whoever has no
Python can compute. So that both work, formulas use `number`, `sqrt` and so on from here in place of `float` and `math`.
"""

from gluongraph.formulas.functions import cos, exp, known, log, number, product, sin, sqrt, tanh
from gluongraph.formulas.symbols import NotAFormula, Symbol, Trace
from gluongraph.formulas.tape import Tape

__all__ = [
    "NotAFormula",
    "Symbol",
    "Tape",
    "Trace",
    "cos",
    "exp",
    "known",
    "log",
    "number",
    "product",
    "sin",
    "sqrt",
    "tanh",
]
