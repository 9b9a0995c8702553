"""Graph -> Graph -> Plan. `pipeline` lists the passes in their order; a pass is in the module of its name, and its
helpers are in modules that begin with that name."""

from gluongraph.passes.amp import amp
from gluongraph.passes.assign_memory import assign_memory
from gluongraph.passes.bucket import bucket
from gluongraph.passes.cse import cse
from gluongraph.passes.distribute import distribute
from gluongraph.passes.fold import fold
from gluongraph.passes.fuse import fuse
from gluongraph.passes.inline import inline
from gluongraph.passes.layout import layout
from gluongraph.passes.pipeline import PIPELINE, PLANNING, Context, Pass
from gluongraph.passes.remat import remat
from gluongraph.passes.scan_dce import scan_dce
from gluongraph.passes.schedule import schedule
from gluongraph.passes.select import select
from gluongraph.passes.shapes import shapes
from gluongraph.passes.simplify import simplify
from gluongraph.passes.sink_reshapes import sink_reshapes

__all__ = [
    "PIPELINE",
    "PLANNING",
    "Context",
    "Pass",
    "amp",
    "assign_memory",
    "bucket",
    "cse",
    "distribute",
    "fold",
    "fuse",
    "inline",
    "layout",
    "remat",
    "scan_dce",
    "schedule",
    "select",
    "shapes",
    "simplify",
    "sink_reshapes",
]
