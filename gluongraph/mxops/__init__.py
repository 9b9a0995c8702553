"""MXNet's operators as builders over nodes: its names, argument order, defaults and conventions.

Each takes nodes (or Python numbers) and gives a node, or several. `gluongraph.nd` and the methods of NDArray call them
through `invoke`, so that one statement serves eager, recorded and traced calls.
"""
