"""Collectives between ranks: one interface, and an implementation for each engine (one process, MPI, NCCL)."""
