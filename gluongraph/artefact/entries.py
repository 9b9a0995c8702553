"""The entry points that an artefact describes, validated when it is read, so that calls need no further checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluongraph.artefact import file, structure
from gluongraph.artefact.file import Artefact
from gluongraph.dtypes import DTYPES
from gluongraph.errors import FormatError
from gluongraph.formulas import Tape
from gluongraph.ir.entry_point import Arg, Program
from gluongraph.ir.plan import SPACES
from gluongraph.tracing.optimizer_updates import SCALAR
from gluongraph.tracing.step_graph import MODES_BY_NAME


def program_of(told: Mapping[str, Any], artefact: Artefact) -> Program:
    """The description of an entry point's arguments."""
    args = tuple(Arg(name, dtype, tuple(shape), space, at) for name, dtype, shape, space, at in told["args"])
    constants = {name: artefact.arrays[tensor].tobytes() for name, tensor in told["constants"].items()}
    sizes = told["scratch_bytes"], told["scalar_bytes"]
    return Program(args, *sizes, told["outputs"], tuple(told["updates"]), constants)


def check(artefact: Artefact) -> None:
    """Raise what is wrong with parameters and entries: FormatError, or what Python raises of a strange structure."""
    for told in artefact.told["parameters"]:
        name, type = file.PARAMS + told["key"], [told["dtype"], told["shape"]]
        _expect(artefact.told["tensors"][name][:2] == type, f"parameter {told['key']!r}: {name} is no {type}")
    states, seen = artefact.told["states"], set[tuple[str, str]]()
    for told in artefact.told["entries"]:
        where = f"entry {told['id']!r}"
        entry = (told["mode"], repr(told["batch"]))
        _expect(told["mode"] in MODES_BY_NAME and entry not in seen, f"{where}: its mode, or there are two of it")
        seen.add(entry)
        _expect({told["code"], told["graph"]} <= artefact.arrays.keys(), f"{where}: its code or graph is missing")
        missing = [n for n, role in told["roles"].items() if role == "state" and n not in states]
        _expect(not missing, f"{where}: nothing tells of the state {missing[:1]}")
        structure.from_data(told["results"])
        scalars = Tape.from_data(told["scalars"]).values if told["scalars"] is not None else {}
        known = {SCALAR: scalars.keys(), "rng": told["draws"].keys()}
        for arg in program_of(told, artefact).args:
            _check_argument(arg, told, artefact, {name for names in known.values() for name in names})


def _check_argument(arg: Arg, told: Mapping[str, Any], artefact: Artefact, scalars: set[str]) -> None:
    where = f"argument {arg.name!r} of {told['id']!r}"
    _expect(arg.dtype in DTYPES and arg.space in SPACES, f"{where}: {arg.dtype}, {arg.space}")
    _expect(all(type(n) is int and n >= 0 for n in (*arg.shape, arg.offset)), f"{where}: its extents")
    room = {"scratch": told["scratch_bytes"], "scalar": told["scalar_bytes"]}.get(arg.space)
    _expect(room is None or arg.offset + arg.nbytes <= room, f"{where} lies outside of its memory")
    if arg.space == "state":
        state = artefact.told["states"][arg.name]
        held = Arg(arg.name, state["dtype"], tuple(state["shape"]), "state")
        _expect((held.dtype, held.size) == (arg.dtype, arg.size), f"{where} is no {state['dtype']}{state['shape']}")
        place = state["value"].get("tensor")
        _expect(place is None or "else" in state["value"] or place in artefact.arrays, f"{where}: {place} is missing")
    elif arg.space == "input":
        dtype, shape = told["batch"][int(arg.name.removeprefix("data"))]
        _expect(
            (dtype, Arg("", dtype, tuple(shape), "input").size) == (arg.dtype, arg.size), f"{where} is no such array"
        )
    elif arg.space == "scalar":
        _expect(arg.name in scalars, f"{where}: nobody tells what it is")
    elif arg.space == "const":
        _expect(artefact.arrays[told["constants"][arg.name]].nbytes == arg.nbytes, f"{where}: its bytes")


def _expect(condition: object, message: str) -> None:
    if not condition:
        raise FormatError(message)
