"""`mx.nd.linalg`: products, factors, triangles and diagonals of matrices along the last two axes."""

from __future__ import annotations

from gluongraph.builders import mxlinalg
from gluongraph.nd.function import function, no_such

gemm = function(mxlinalg.gemm)
gemm2 = function(mxlinalg.gemm2)
syrk = function(mxlinalg.syrk)
trmm = function(mxlinalg.trmm)
potrf = function(mxlinalg.potrf)
potri = function(mxlinalg.potri)
trsm = function(mxlinalg.trsm)
inverse = function(mxlinalg.inverse)
gelqf = function(mxlinalg.gelqf)
syevd = function(mxlinalg.syevd)
det = function(mxlinalg.det)
slogdet = function(mxlinalg.slogdet)
sumlogdiag = function(mxlinalg.sumlogdiag)
extractdiag = function(mxlinalg.extractdiag)
makediag = function(mxlinalg.makediag)
extracttrian = function(mxlinalg.extracttrian)
maketrian = function(mxlinalg.maketrian)

__getattr__ = no_such(__name__, globals())
