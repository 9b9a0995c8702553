"""CPU kernels other than contractions: elementwise loops, reductions, row-wise kernels, scatter, pooling, scans."""
