"""The intermediate representation: ops, nodes, graphs and plans, and what reads, checks, prints and rewrites them."""
