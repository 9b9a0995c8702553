"""Kernels of CPUs that are no contractions: elementwise loops, reductions, rows, scatter, pooling, scans."""
