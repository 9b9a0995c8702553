"""The entry points that an artefact describes, validated when it is read, so that calls need no further checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluongraph.artefact import file, structure
from gluongraph.artefact.file import Artefact
from gluongraph.dtypes import DTYPES
from gluongraph.errors import FormatError
from gluongraph.formulas import Tape
from gluongraph.ir.entry_point import Arg, Collective, Program
from gluongraph.ir.plan import SPACES
from gluongraph.storage import aligned
from gluongraph.tracing.optimizer_updates import SCALAR
from gluongraph.tracing.step_graph import MODES_BY_NAME


def program_of(told: Mapping[str, Any], artefact: Artefact) -> Program:
    """The description of an entry point's arguments."""
    args = tuple(Arg(name, dtype, tuple(shape), space, at) for name, dtype, shape, space, at in told["args"])
    constants = {name: artefact.arrays[tensor].tobytes() for name, tensor in told["constants"].items()}
    sizes = told["scratch_bytes"], told["scalar_bytes"]
    collectives = tuple(Collective(op, tuple(r), tuple(w), n) for op, r, w, n in told.get("collectives", ()))
    steps = tuple((what, number) for what, number in told.get("steps", ()))
    return Program(args, *sizes, told["outputs"], tuple(told["updates"]), constants, collectives, steps)


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
        program = program_of(told, artefact)
        for arg in program.args:
            _check_argument(arg, told, artefact, {name for names in known.values() for name in names})
        check_collectives(program, where)
    _check_ranks(artefact)


def _check_ranks(artefact: Artefact) -> None:
    """Collectives take ranks, and the version of the format that has them."""
    told, version = artefact.told, artefact.metadata.get("format_version")
    _expect(version == str(file.version_of(told)), f"format {version} is not that of its contents")
    ranks, collectives = told.get("ranks"), any("collectives" in entry for entry in told["entries"])
    _expect(ranks is None or (type(ranks) is int and ranks > 0), f"it was exported by {ranks!r} ranks")
    _expect(not collectives or ranks is not None, "it has collectives, and was exported by one process")


def check_collectives(program: Program, where: str) -> None:
    """Check that collectives sum flat scratch memory in place, and that each is started and waited for once.

    Raises:
        FormatError: they do not; `where` begins the message.
    """
    for collective in program.collectives:
        places = collective.reads
        _expect(collective.op == "all_reduce" and places == collective.writes, f"{where}: a collective is no sum")
        _expect(type(collective.shard) is int and collective.shard == 0, f"{where}: a sum over ranks in parts")
        _expect(places and all(map(_is_number, places)), f"{where}: what its collectives sum")
        _expect(max(places) < len(program.args), f"{where}: a collective sums no argument")
        members = [program.args[place] for place in places]
        fits = all(arg.space == "scratch" and arg.dtype == members[0].dtype for arg in members)
        ends = [arg.offset + aligned(arg.nbytes) for arg in members]
        fits = fits and [arg.offset for arg in members[1:]] == ends[:-1] and ends[-1] <= program.scratch_bytes
        _expect(fits, f"{where}: a collective sums memory with gaps")
    _check_steps(program.steps, len(program.collectives), where)


def _check_steps(steps: Sequence[tuple[Any, Any]], collectives: int, where: str) -> None:
    """Segments and collectives run in order, and what is started is waited for."""
    _expect(bool(steps) == bool(collectives), f"{where}: collectives without steps, or steps alone")
    _expect(all(_is_number(number) for _, number in steps), f"{where}: its steps")
    numbers = {what: [n for kind, n in steps if kind == what] for what in ("run", "start", "wait")}
    _expect(sum(map(len, numbers.values())) == len(steps), f"{where}: a step that is none")
    runs = numbers["run"]
    _expect(runs == list(range(len(runs))) and bool(runs) == bool(steps), f"{where}: its segments")
    _expect(numbers["start"] == sorted(numbers["wait"]) == list(range(collectives)), f"{where}: not all collectives")
    early = [n for n in numbers["wait"] if steps.index(("wait", n)) < steps.index(("start", n))]
    _expect(not early, f"{where}: waits for a collective that is not running")


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0


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
