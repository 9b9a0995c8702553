"""Kernels of CUDA GPUs."""
