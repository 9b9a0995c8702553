"""Graphs and plans are the same to the byte whatever the hash seed: the test that ranks of one job agree."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

PROGRAM = """
from random import Random
from random_graphs import make
from gluongraph.passes import PIPELINE, Context, assign_memory, schedule, select
from gluongraph.ir.plan import Candidate
from gluongraph.ir.printer import show, show_plan
from gluongraph.ir.serialize import fingerprint

def plan_of(graph, roles):
    for each in PIPELINE:
        graph = each.run(graph, Context())
        print(each.name, fingerprint(graph))
    print(show(graph))
    return assign_memory(schedule(select(graph, lambda group: Candidate("any"), plan_of), roles))

for seed in range(12):
    graph = make(12, Random(seed))
    roles = {name: "state" if name in graph.updates else "input" for name in graph.inputs}
    print(show(graph), show_plan(plan_of(graph, roles)))
"""


def _output(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(pathlib.Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_texts_and_plans_do_not_depend_on_the_hash_seed() -> None:
    one, two = _output("1"), _output("2")
    assert len(one.splitlines()) > 500
    assert one == two
