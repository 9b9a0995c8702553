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
from gluongraph.ir.graph import TensorType
from gluongraph.ir.plan import SPACES
from gluongraph.ops.collective import COLLECTIVES, shard_size
from gluongraph.storage import aligned
from gluongraph.tracing.optimizer_updates import SCALAR
from gluongraph.tracing.step_graph import MODES_BY_NAME

NO_STATES: Mapping[tuple[str, ...], int] = {}


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
    _check_shards(artefact)
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
        check_collectives(program, where, artefact.told.get("ranks"), _flat_states(artefact))
    _check_ranks(artefact)


def _check_ranks(artefact: Artefact) -> None:
    """Collectives take ranks, and the version of the format that has them."""
    told, version = artefact.told, artefact.metadata.get("format_version")
    _expect(version == str(file.version_of(told)), f"format {version} is not that of its contents")
    ranks, collectives = told.get("ranks"), any("collectives" in entry for entry in told["entries"])
    _expect(ranks is None or (type(ranks) is int and ranks > 0), f"it was exported by {ranks!r} ranks")
    _expect(not collectives or ranks is not None, "it has collectives, and was exported by one process")


def _check_shards(artefact: Artefact) -> None:
    """What is divided among ranks are parameters of one dtype, and their states; it says how large a rank's part is."""
    told = artefact.told
    of = {row["key"]: row for row in told["parameters"]}
    buckets, seen = told.get("exchange", {}).get("buckets", {}), set[str]()
    _expect(not buckets or file.is_for_its_ranks(told), "it divides parameters among any number of ranks")
    for name, bucket in buckets.items():
        rows = [of[key] for key in bucket["parameters"]]
        types = [TensorType(tuple(row["shape"]), row["dtype"]) for row in rows]
        _expect(rows and len({ty.dtype for ty in types}) == 1, f"{name}: no parameters of one dtype")
        _expect(seen.isdisjoint(bucket["parameters"]), f"{name}: a parameter that is divided already")
        seen |= {*bucket["parameters"]}
        _expect(bucket["elements"] == shard_size(types, told["ranks"]), f"{name}: its part of a rank")
    for name, state in told["states"].items():
        if "shard" not in (value := state["value"]):
            continue
        bucket = buckets[value["shard"]]
        rows = [of[key] for key in bucket["parameters"]]
        if "state" in value:
            kept = [row["states"][value["state"]] for row in rows]  # dtype and shape of each
            _expect([shape for _, shape in kept] == [row["shape"] for row in rows], f"state {name!r}: its shape")
            dtypes = {dtype for dtype, _ in kept}
        else:
            dtypes = {row["dtype"] for row in rows}
        _expect(dtypes == {state["dtype"]} and state["shape"] == [bucket["elements"]], f"state {name!r}: its type")


def _flat_states(artefact: Artefact) -> dict[tuple[str, ...], int]:
    """The states that lie one after another in memory, by the names in graphs; and the elements of a rank's part."""
    name_of = {row["key"]: row["name"] for row in artefact.told["parameters"]}
    buckets = artefact.told.get("exchange", {}).get("buckets", {}).values()
    return {tuple(name_of[key] for key in bucket["parameters"]): bucket["elements"] for bucket in buckets}


def check_collectives(
    program: Program, where: str, ranks: Any = None, flat_states: Mapping[tuple[str, ...], int] = NO_STATES
) -> None:
    """Check that collectives are of memory that lies in one piece, and that each is started and waited for once.

    `ranks` is how many have parts of it; `flat_states` are states that lie in one piece, and the elements of a part.

    Raises:
        FormatError: they are not; `where` begins the message.
    """
    for collective in program.collectives:
        _check_collective(collective, program, where, ranks)
        members = [program.args[place] for place in collective.flat]
        nbytes = DTYPES[members[0].dtype].nbytes * collective.shard * (ranks if type(ranks) is int else 1)
        _expect(all(arg.dtype == members[0].dtype for arg in members), f"{where}: a collective of memory with gaps")
        if all(arg.space == "state" for arg in members) and collective.shard:
            part = flat_states.get(tuple(arg.name for arg in members))
            _expect(part == collective.shard, f"{where}: a collective of states with gaps")
            continue
        ends = [arg.offset + aligned(arg.nbytes) for arg in members]
        fits = all(arg.space == "scratch" for arg in members) and [arg.offset for arg in members[1:]] == ends[:-1]
        end = max(ends[-1], members[0].offset + nbytes)
        _expect(fits and end <= program.scratch_bytes, f"{where}: a collective of memory with gaps")
    _check_steps(program.steps, len(program.collectives), where)


def _check_collective(collective: Collective, program: Program, where: str, ranks: Any) -> None:
    """It exists, and is of arguments that do; a sum is of numbers and in place, others have one part of each rank."""
    places = [*collective.reads, *collective.writes]
    _expect(collective.op in COLLECTIVES, f"{where}: a collective that does not exist")
    _expect(
        collective.reads and collective.writes and all(map(_is_number, places)), f"{where}: a collective of nothing"
    )
    _expect(max(places) < len(program.args), f"{where}: a collective of no argument")
    flat = program.args[collective.flat[0]]
    _expect(collective.op == "all_gather" or flat.dtype != "bool", f"{where}: a sum of truth values")
    _expect(type(collective.shard) is int, f"{where}: the size of a part")
    if collective.op == "all_reduce":
        _expect(collective.reads == collective.writes and collective.shard == 0, f"{where}: a sum that is not in place")
        return
    parts = collective.reads if collective.op == "all_gather" else collective.writes
    part = program.args[parts[0]]
    fits = len(parts) == 1 and (part.dtype, part.size) == (flat.dtype, collective.shard) and part.size > 0
    _expect(
        fits and part.space in ("scratch", "state") and type(ranks) is int, f"{where}: a collective of another part"
    )


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
