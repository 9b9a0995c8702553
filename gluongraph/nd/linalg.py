"""`mx.nd.linalg`: products, triangles and diagonals of matrices along the last two axes."""

from __future__ import annotations

from gluongraph import mxlinalg
from gluongraph.nd.function import function

gemm = function(mxlinalg.gemm)
gemm2 = function(mxlinalg.gemm2)
syrk = function(mxlinalg.syrk)
trmm = function(mxlinalg.trmm)
sumlogdiag = function(mxlinalg.sumlogdiag)
extractdiag = function(mxlinalg.extractdiag)
makediag = function(mxlinalg.makediag)
extracttrian = function(mxlinalg.extracttrian)
maketrian = function(mxlinalg.maketrian)
