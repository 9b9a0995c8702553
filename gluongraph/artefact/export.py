"""Export of a training step to one file: all entry points compiled, with the arrays that they read and write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.artefact import compatibility, file, signing, structure
from gluongraph.artefact import update_scalars as how
from gluongraph.artefact.snapshot import current, is_of_all_ranks
from gluongraph.checkpoint import collective
from gluongraph.checkpoint.part import Training
from gluongraph.codegen.cache.artifacts import LIBRARY
from gluongraph.codegen.rule import Target
from gluongraph.codegen.targets import target as find_target
from gluongraph.codegen.tvm.linking import command_for
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.errors import MXNetError, ShapeError, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.host import nvidia, params_file
from gluongraph.host.file_names import check_name
from gluongraph.host.progress import quiet, task
from gluongraph.ir import serialize
from gluongraph.ir.entry_point import Program
from gluongraph.ir.graph import TensorType
from gluongraph.ndarray import NDArray
from gluongraph.ops import index_checks
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.step.batch import as_array
from gluongraph.step.micro_batches import MicroBatches
from gluongraph.step.specializations import Specializations
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import WINDOW, GradientAccumulator
from gluongraph.tracing.compressed_exchange import RESIDUAL
from gluongraph.tracing.ema import AVERAGE
from gluongraph.tracing.loss_scaling import GOOD, SCALE
from gluongraph.tracing.optimizer_updates import GRAD, SCALAR
from gluongraph.tracing.step_graph import MODES_BY_NAME, StepGraph
from gluongraph.tracing.tracer import Traced

if TYPE_CHECKING:
    from gluongraph.compiler.lower import Compiled
    from gluongraph.gluon.trainer import Trainer
    from gluongraph.step import TrainStep

Types = tuple[TensorType, ...]
EXPORTABLE = ("step", "evaluate", "predict", "grads", "accumulate", "apply")
IN_MICRO_BATCHES = ("step", "evaluate", "predict")
SUMMED = ("accumulate", "backward")  # whose gradients "apply" takes


def export(
    step: TrainStep,
    path: str | os.PathLike[str],
    batches: Sequence[Sequence[Any]] | None,
    batch_sizes: Sequence[int] | None,
    modes: Sequence[str] | None,
    target: str | None,
    progress: bool,
) -> None:
    """Write a step as an artefact; see `TrainStep.export`."""
    check_name("export", path, "step.export('step.gga')")
    params_file.need_folder(os.fspath(path))  # before anything is compiled
    wanted = _modes(step, modes)
    types = _batches(step, batches, batch_sizes)
    _check(step, batches[0] if batches else ())
    if (trainer := step.trainer) is not None and is_of_all_ranks(step):
        Agreement(trainer.communicator, f"step.export after {trainer.optimizer.num_update} updates")()
    on = find_target(target or step.options.target)
    command_for(on.machine)  # raises, before anything is compiled
    maker = _Maker(step, on)
    batches_of: dict[str, list[Types]] = {
        "apply": [()],
        "backward": [_micro(step, each) for each in types] if "backward" in wanted else [],
    }
    entries = [(mode, *each) for mode in wanted for each in enumerate(batches_of.get(mode, types))]
    with quiet(not progress), task(len(entries), "exporting") as done:
        for mode, number, each in entries:
            maker.add(mode, number, each)
            done()
    told, arrays = maker.finish()
    by_one_of_all(step, lambda: file.write(path, told, arrays, signing.signatures))


def by_one_of_all(step: TrainStep, write: Callable[[], None]) -> None:
    """Write a file: of several ranks that export together the first one does.

    Raises:
        OSError: it cannot be written; on all ranks.
    """
    if step.trainer is not None and is_of_all_ranks(step):
        collective.on_rank_0(step.trainer.communicator, write)
    else:
        write()


def _check(step: TrainStep, batch: Sequence[Any]) -> None:
    """Refuse what no artefact can hold. The batch completes shapes of parameters that wait for a first forward."""
    trainer, wrong = step.trainer, ""
    if trainer is None:
        return
    step._specializations.prepare(trainer, batch)
    if len(trainer.contexts) > 1:
        wrong = f"its parameters are on {len(trainer.contexts)} contexts, and an artefact runs on one"
    elif step._in_python(trainer):
        wrong = "Python acts between its gradients and updates: an optimizer without a formula, a store or a method"
    elif step.averages is not None and step.averages.shown:
        wrong = "the averages are in place of the weights: leave the block first"
    if wrong:
        raise MXNetError(with_user_location(f"the step cannot be exported: {wrong}"))


def _modes(step: TrainStep, modes: Sequence[str] | None) -> tuple[str, ...]:
    known: tuple[str, ...] = EXPORTABLE if step.trainer is not None else ("predict",)
    if step.options.micro_batches:
        known = IN_MICRO_BATCHES
    if strange := [mode for mode in modes or () if mode not in known]:
        raise ValueError(
            with_user_location(f"export: there is no mode {strange[0]!r}", help=f"choose among {', '.join(known)}")
        )
    chosen = [mode for mode in known if modes is None or mode in modes]
    if step.options.micro_batches and "step" in chosen:  # gradients of a micro-batch, and an update by the sums of all
        return ("backward", "apply", *chosen[1:])
    if "apply" in chosen and "accumulate" not in chosen:
        raise ValueError(with_user_location("export: 'apply' without 'accumulate' has nothing to apply"))
    return tuple(chosen)


def _batches(step: TrainStep, batches: Sequence[Sequence[Any]] | None, sizes: Sequence[int] | None) -> list[Types]:
    """The types of the batches that the entry points are compiled for.

    Raises:
        MXNetError: none is given, and the step has not been called.
        ValueError: a size that is no positive number.
    """
    if batches is not None:
        types = [tuple(map(_type, batch)) for batch in batches]
    elif step.dynamic is not None and sizes is None:
        message = "export: entry points are for exact shapes, and this step pads its arrays"
        raise MXNetError(with_user_location(message, help="name the shapes: export(path, batches=[(x, y)])"))
    else:
        keys = [key for key in step._specializations.keys if key[1] and key[0].name != "predict"]
        parts = micro_batches_of_rank(step)
        types = list(dict.fromkeys(longer(_types(key[1]), parts if key[0].name == "backward" else 1) for key in keys))
        if not types and step.trainer is None:
            types = list(dict.fromkeys(_types(key[1]) for key in step._specializations.keys))
    if not types:
        help = "call the step once, or export(path, batches=[(x, y)])"
        raise MXNetError(with_user_location("export: no shapes are known yet", help=help))
    if sizes is None:
        return types
    if not sizes or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError(with_user_location(f"batch_sizes are positive numbers, not {sizes!r}"))
    first = types[-1]
    if not first[0].rank:
        raise ValueError(
            with_user_location(f"batch_sizes of a batch without an axis: {first[0]}", help="give batches=")
        )
    old = first[0].shape[0]
    return [
        tuple(TensorType((size, *t.shape[1:]), t.dtype) if t.rank and t.shape[0] == old else t for t in first)
        for size in sizes
    ]


def micro_batches_of_rank(step: TrainStep) -> int:
    """How many micro-batches a batch of a rank is; 1 where it is computed as a whole."""
    if not (total := step.options.micro_batches) or step.trainer is None:
        return 1
    return MicroBatches(step, step.trainer, total).own


def longer(types: Types, times: int) -> Types:
    """The types of so many batches one after another."""
    return tuple(TensorType((times * t.shape[0], *t.shape[1:]), t.dtype) if t.rank else t for t in types)


def _micro(step: TrainStep, types: Types) -> Types:
    """The types of a micro-batch of a rank's batch.

    Raises:
        ShapeError: the samples are not so many equal micro-batches.
    """
    parts = micro_batches_of_rank(step)
    for i, ty in enumerate(types):
        if ty.rank and ty.shape[0] % parts:
            message = f"export: argument {i} has {ty.shape[0]} samples, which are not {parts} equal micro-batches"
            raise ShapeError(with_user_location(f"{message} of this rank"))
    return tuple(TensorType((t.shape[0] // parts, *t.shape[1:]), t.dtype) if t.rank else t for t in types)


def _types(key: Sequence[tuple[tuple[int, ...], Any]]) -> Types:
    return tuple(TensorType(shape, dtype_name(dtype)) for shape, dtype in key)


def _type(given: Any) -> TensorType:
    if isinstance(given, TensorType):
        return given
    array = as_array(0, given)
    return TensorType(array.shape, dtype_name(array.dtype))


@dataclass
class _Entry:
    """One compiled entry point."""

    name: str
    mode: str
    batch: Types
    step_graph: StepGraph
    traced: Traced
    compiled: Compiled


def _ranks(trainer: Trainer | None) -> dict[str, int]:
    """How many ranks train the step together; nothing where it is for one process."""
    store = trainer._kvstore if trainer is not None else None
    return {"ranks": store.num_workers} if store is not None and store.type.startswith("dist") else {}


def _exchange(step: TrainStep, parameters: Mapping[str, Any], divides: bool) -> dict[str, Any]:
    """How gradients are compressed, and what the code `divides` among ranks; nothing where they are sent as they are,
    and every rank has everything."""
    if (trainer := step.trainer) is None:
        return {}
    told: dict[str, Any] = {}
    if (compression := trainer.exchange.compression) is not None:
        told["compression"] = {"type": compression.type, "threshold": compression.threshold}
    if (sharding := trainer.exchange.sharding) is not None and divides:
        key_of = {p.key: key for key, p in parameters.items()}
        told["strategy"] = trainer.strategy
        told["buckets"] = {
            bucket.name: {
                "parameters": [key_of[name] for name in bucket.parameters],
                "elements": bucket.shard(sharding.ranks).size,
            }
            for bucket in sharding.buckets
        }
    return {"exchange": told} if told else {}


def _collectives(program: Program) -> dict[str, Any]:
    """What tells of a program's collectives; nothing where it has none."""
    if not program.collectives:
        return {}
    rows = [[c.op, list(c.reads), list(c.writes), c.shard] for c in program.collectives]
    return {"collectives": rows, "steps": [list(step) for step in program.steps]}


class _Maker:
    """Compiles entry points, and gathers what goes into the file."""

    def __init__(self, step: TrainStep, on: Target):
        self.step, self.on = step, on
        before = step._specializations
        self.accumulator = GradientAccumulator()
        lower = partial(before.lower, on=on, tune=0.0)  # what has been measured is in its code anyway
        self.specializations = Specializations(
            before.function, before.predict, step.trainer, lower, step.options, step.averages, self.accumulator
        )
        self.entries: list[_Entry] = []
        self.arrays: dict[str, Array] = {}

    def add(self, mode: str, number: int, types: Types) -> None:
        """Compile one more entry point."""
        if mode == "apply":
            self.accumulator.names = tuple(
                dict.fromkeys(n for e in self.entries for n in e.step_graph.names if e.mode in SUMMED)
            )
        if mode == "predict" and self.step.inputs is not None:
            types = types[: self.step.inputs]
        arrays = [np.zeros(t.shape, numpy_dtype(t.dtype)) for t in types]
        step_graph, traced, _ = self.specializations.step_graph(MODES_BY_NAME[mode], arrays)
        compiled = self.specializations.lower(step_graph.graph, step_graph.roles, step_graph.forward)
        if compiled.artefact is None or not compiled.artefact.files:
            reason = (
                "GG_BACKEND or GG_CHECK has graphs interpreted" if compiled.artefact is None else "nothing links it"
            )
            raise MXNetError(with_user_location(f"export: there is no library of the compiled code: {reason}"))
        self.entries.append(_Entry(f"{mode}.{number}", mode, types, step_graph, traced, compiled))

    # -- the file

    def finish(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The descriptor and the arrays."""
        step = self.step
        arrays, about = current(step)
        self.arrays |= arrays
        parameters = self._parameters()
        sources = self._sources(parameters)
        told = {
            "writer": compatibility.versions(),
            "target": _target(self.on) | ({"code": self._gpu_code()} if self.on.gpu else {}),
            "precision": step.options.precision.name,
            "options": {
                name: getattr(step.options, name)
                for name in (
                    "keep_grads",
                    "clip_norm",
                    "grad_norm",
                    "error_if_nonfinite",
                    "ema",
                    "detect_anomaly",
                    *THRIFT,
                )
            }
            # As a text: numbers of JSON are finite. Left out where it is what a reader assumes that knows no other.
            | ({"norm_type": str(step.options.norm_type)} if step.options.norm_type != 2 else {})
            | ({"micro_batches": step.options.micro_batches} if step.options.micro_batches else {}),
            "parameters": [self._parameter(key, p) for key, p in parameters.items()],
            "states": {name: sources(name, array) for name, array in self._held().items()},
            **self._optimizer(),
            **_ranks(step.trainer),
            **_exchange(step, parameters, self._divides()),
            "entries": [self._entry(e) for e in self.entries],
            "about": about,
        }
        return told, self.arrays

    def _divides(self) -> bool:
        """Are there collectives of parts among the entry points? Predictions from whole parameters have none."""
        artefacts = [e.compiled.artefact for e in self.entries]
        collectives = [c for artefact in artefacts if artefact is not None for c in artefact.program.collectives]
        return any(c.op != "all_reduce" for c in collectives)

    def _held(self) -> dict[str, NDArray]:
        """The arrays behind all entry points, by the names of graph inputs.

        Raises:
            MXNetError: arrays without names of their own, of which two traces have called different ones alike.
        """
        found: dict[str, NDArray] = {}
        for e in self.entries:
            for name, array in e.step_graph.held.items():
                if found.setdefault(name, array).storage is not array.storage:
                    message = f"{name} is one array in {self.entries[0].mode} and another in {e.mode}"
                    help = "make them constants of the net (params.get_constant), or export with fewer modes"
                    raise MXNetError(with_user_location(f"export: {message}", help=help))
        return found

    def _parameters(self) -> dict[str, Any]:
        """All parameters of net and trainer, by their names in files."""
        step = self.step
        if step.trainer is not None:
            return Training(step).parameters
        return dict(step.net._collect_params_with_prefix()) if isinstance(step.net, Block) else {}

    def _parameter(self, key: str, parameter: Any) -> dict[str, Any]:
        trainer = self.step.trainer
        told = {
            "key": key,
            "name": parameter.key,
            "dtype": dtype_name(parameter.dtype),
            "shape": list(parameter.shape),
            "grad_req": parameter.grad_req,
            "grad_stype": parameter.grad_stype,
            "index": None,
        }
        if trainer is None or parameter.key not in trainer.names:
            return told
        told["index"] = trainer.index(parameter)
        if parameter.grad_req != "null":
            types = trainer.optimizer_of(parameter.key).state_types(parameter.data().type)
            told["states"] = {name: [t.dtype, list(t.shape)] for name, t in types.items()}
        return told

    def _sources(self, parameters: Mapping[str, Any]) -> Any:
        """A function that tells of each array of state what it begins as."""
        key_of = {id(p.data().storage): key for key, p in parameters.items()}
        trainer = self.step.trainer
        shards = trainer.exchange.sharding if trainer is not None else None
        divided = {bucket.name for bucket in shards.buckets} if shards is not None else set[str]()
        name_of = {p.key: key for key, p in parameters.items()}

        def value(name: str, array: NDArray) -> dict[str, Any]:
            prefix = next((p for p in (AVERAGE, WINDOW, GRAD, RESIDUAL) if name.startswith(p)), "")
            owner, _, state = name.partition("/")
            if owner in divided:
                return {"shard": owner, **({"state": state} if state else {})}
            if id(array.storage) in key_of:
                return {"tensor": file.PARAMS + key_of[id(array.storage)]}
            if prefix:
                place = file.REST + prefix + name_of[name.removeprefix(prefix)]
                return {"tensor": place, **({"else": 0} if prefix == WINDOW else {})}
            if name in (SCALE, GOOD):
                return {"loss_scale": (SCALE, GOOD).index(name)}
            if state and owner in name_of and f"{file.STATES}{name_of[owner]}/{state}" in self.arrays:
                return {"tensor": f"{file.STATES}{name_of[owner]}/{state}"}
            if state and state == self.step.options.precision.low:
                return {"cast": owner}
            self.arrays[file.CAPTURES + name] = array.storage.array
            return {"tensor": file.CAPTURES + name}

        return lambda name, array: {
            "dtype": array.type.dtype,
            "shape": list(array.shape),
            "value": value(name, array),
        }

    def _optimizer(self) -> dict[str, Any]:
        if self.step.trainer is None:
            return {"optimizer": None}
        trainer, optimizer = self.step.trainer, self.step.trainer.optimizer
        self.numbers = numbers = how.numbers_of(optimizer)
        counting, schedule = numbers.counting(), optimizer.lr_scheduler
        by = "formula" if numbers.by_formula else "caller"
        told = {
            "name": type(optimizer).__name__,
            "scale": float(trainer.scale),
            "begin_num_update": optimizer.begin_num_update,
            "multi_precision": optimizer.multi_precision,
            "copies": sorted(optimizer.copies),
            "schedule": None if schedule is None else {"class": type(schedule).__name__, "by": by},
            "learning_rate": numbers.rate().to_data(),
            "count": None if counting is None else counting.to_data(),
        }
        return {"optimizer": told}

    def _gpu_code(self) -> str:
        """What the machine code of all entries is, as `nvidia.fits` has it."""
        artefacts = [e.compiled.artefact for e in self.entries]
        binaries = [next(iter(artefact.binaries.values()), None) for artefact in artefacts if artefact is not None]
        return min(map(nvidia.kind_of, binaries), key=("source", "cubin", "fatbin").index, default="source")

    def _entry(self, e: _Entry) -> dict[str, Any]:
        artefact = e.compiled.artefact
        assert artefact is not None
        program = artefact.program
        self.arrays[file.CODE + e.name] = np.frombuffer(artefact.files[LIBRARY], np.uint8)
        for name, binary in artefact.binaries.items():
            self.arrays[f"{file.CODE}{e.name}/{name}"] = np.frombuffer(binary, np.uint8)
        text = serialize.dumps(e.compiled.traced, origins=False)
        self.arrays[file.GRAPHS + e.name] = np.frombuffer(text.encode(), np.uint8)
        for name, data in program.constants.items():
            self.arrays[f"{file.CONSTANTS}{e.name}/{name}"] = np.frombuffer(data, np.uint8)
        first = e.traced.graph.outputs[e.traced.first].shape if e.traced.graph.outputs else ()
        return {
            "id": e.name,
            "mode": e.mode,
            "code": file.CODE + e.name,
            "graph": file.GRAPHS + e.name,
            "symbol": "step",
            "batch": [[t.dtype, list(t.shape)] for t in e.batch],
            "args": [[a.name, a.dtype, list(a.shape), a.space, a.offset] for a in program.args],
            "scratch_bytes": program.scratch_bytes,
            "scalar_bytes": program.scalar_bytes,
            "outputs": dict(program.outputs),
            **_collectives(program),
            "constants": {name: f"{file.CONSTANTS}{e.name}/{name}" for name in program.constants},
            "updates": list(e.step_graph.graph.updates),
            "results": structure.to_data(e.traced.outputs),
            "samples": first[0] if first else 1,
            "names": list(e.step_graph.names),
            "masked": e.step_graph.masked,
            "guarded": e.step_graph.guard is not None,
            "checks": index_checks.descriptions(e.compiled.traced),
            "draws": {name: [ctx.device_type, ctx.device_id, n] for name, (ctx, n) in e.step_graph.draws.items()},
            "roles": dict(e.step_graph.roles),
            "forward": list(e.step_graph.forward),
            **self._scalars(e),
        }

    def _scalars(self, e: _Entry) -> dict[str, Any]:
        """The numbers that an update takes."""
        table, trainer = e.step_graph.table, self.step.trainer
        if table is None or trainer is None:
            return {"counts": [], "groups": [], "scalars": None}
        own = [SCALAR + key for key in table.keys]
        others = [name for name in e.step_graph.graph.inputs if name.startswith(SCALAR) and name not in own]
        tape = self.numbers.scalars(table, others)
        averages, options = self.step.averages, self.step.options
        known = {how.EMA: averages.decay if averages is not None else 0.0, how.CLIP: options.clip_norm or 0.0}
        how.check(trainer.optimizer, self.numbers, table, tape, known)
        groups = [list(members) for members in table.groups]
        return {"counts": list(table.indices), "groups": groups, "scalars": tape.to_data()}


THRIFT = ("remat", "memory_budget", "activations")


def _target(on: Target) -> dict[str, Any]:
    options = on.tvm
    triple = options.get("mtriple", "")
    return {
        "name": on.name,
        "kind": options["kind"],
        "machine": on.machine,
        "triple": triple,
        "cpu": options.get("mcpu"),
        "needs": list(on.needs),
        "arch": options.get("arch"),
    }
