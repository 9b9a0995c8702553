"""The operators that graphs are made of: their kinds, what mixed precision does with them, what they have.

  gluongraph ops                     # all of them
  gluongraph ops --kind contraction  # of one kind
  gluongraph ops softmax conv        # those with such a word in their name
  gluongraph ops --json

"numeric" is the class in mixed precision: low is computed in 16 bit, full in float32, keep in what it is given. A
composite has a body of other ops; its gradient, where it has none of its own, is that of the body.
"""

from __future__ import annotations

import argparse
import importlib

from gluongraph.cli import Refused
from gluongraph.host.terminal import as_json, table


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("word", nargs="*", help="part of a name")
    parser.add_argument("--kind", help="one kind only")
    parser.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    from gluongraph.ir.graph import KINDS, OPS

    importlib.import_module("gluongraph.ops")  # declares them
    if options.kind is not None and options.kind not in KINDS:
        raise Refused(f"there is no kind {options.kind}; there are {', '.join(KINDS)}")
    rows = [
        {
            "name": op.name,
            "kind": op.kind,
            "numeric": op.numeric,
            "gradient": op.grad is not None or op.body is not None,
            "lowering": op.lower is not None,
            "body": op.body is not None,
            "doc": op.doc,
        }
        for op in sorted(OPS.values(), key=lambda op: (KINDS.index(op.kind), op.name))
        if options.kind in (None, op.kind) and (not options.word or any(word in op.name for word in options.word))
    ]
    if not rows:
        raise Refused(f"no operator of that kind has {' or '.join(options.word)} in its name")
    if options.json:
        as_json(rows)
        return 0
    head = ["name", "kind", "numeric", "gradient", "made by", ""]
    made = {True: "its body", False: "lowering"}
    print(
        table(
            head,
            [
                [
                    row["name"],
                    row["kind"],
                    row["numeric"],
                    "yes" if row["gradient"] else "-",
                    made[bool(row["body"])] if row["lowering"] or row["body"] else "-",
                    row["doc"],
                ]
                for row in rows
            ],
        )
    )
    return 0
