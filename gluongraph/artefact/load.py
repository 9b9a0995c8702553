"""A step loaded from its artefact: nothing is traced, and nothing is compiled where its code may run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from gluongraph import checkpoint, debug, initializer, random
from gluongraph.artefact import code, compatibility, entries, file, signing, structure
from gluongraph.artefact import update_scalars as how
from gluongraph.artefact.export import by_one_of_all, longer, micro_batches_of_rank
from gluongraph.artefact.file import Artefact
from gluongraph.artefact.graphs import graph_of
from gluongraph.artefact.optimizer import ExportedOptimizer, Shapes, optimizer_of
from gluongraph.artefact.signing import Verdict
from gluongraph.artefact.snapshot import OF_GROUPS, current
from gluongraph.checkpoint.part import REST, STATES, WEIGHTS
from gluongraph.checkpoint.ranks import RANKS
from gluongraph.context import Context, cpu
from gluongraph.errors import (
    CompileError,
    FormatError,
    MXNetError,
    NotFiniteError,
    ShapeError,
    UnsupportedError,
    warn,
    with_user_location,
)
from gluongraph.formulas import Tape
from gluongraph.gluon.block import Block
from gluongraph.gluon.parameter import Parameter
from gluongraph.gluon.trainer import Trainer
from gluongraph.host.file_names import check_name
from gluongraph.ir.entry_point import REPEATED
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.serialize import described
from gluongraph.ndarray import NDArray
from gluongraph.ops import index_checks
from gluongraph.optimizer import Optimizer
from gluongraph.runtime import loader
from gluongraph.runtime.checkpoint import Content
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.device import DeviceExecutor
from gluongraph.runtime.executor import Executor
from gluongraph.step import Options, TrainStep
from gluongraph.step.several import steps_per_call_of
from gluongraph.step.specialization import Specialization
from gluongraph.step.specializations import Specializations
from gluongraph.storage import Array
from gluongraph.tracing.accumulation import WINDOW
from gluongraph.tracing.anomaly import SOUND
from gluongraph.tracing.compressed_exchange import RESIDUAL
from gluongraph.tracing.ema import AVERAGE
from gluongraph.tracing.loss_scaling import GOOD, SCALE
from gluongraph.tracing.low_precision_copies import Copies, copy_of
from gluongraph.tracing.optimizer_updates import GRAD, SCALAR, ScalarTable
from gluongraph.tracing.precision import precision_of
from gluongraph.tracing.step_graph import MODES_BY_NAME, Mode
from gluongraph.tracing.tracer import Traced

if TYPE_CHECKING:
    from gluongraph.compiler.lower import Compiled

Types = tuple[tuple[tuple[int, ...], Any], ...]


def load(
    path: str | os.PathLike[str],
    lr_scheduler: Callable[[int], float] | None = None,
    trust: str = signing.KEYS,
    steps_per_call: int | None = None,
) -> ExportedStep:
    """The step that `step.export(path)` wrote, which trains on as that one would have, bit for bit.

    Compiled code in a file is a program. It runs only where this user has exported the file on this machine, or where
    somebody has signed it whose key is trusted (`gluongraph key`), and where versions and CPU are the right ones.
    Otherwise the step is compiled again here from its graph, which is data, when it is first called; a warning says so.
    The generators of `mx.random` go on where they were.

    What ranks have exported trains on the ranks that there are, as many as that may be: all of them load it. What has
    parts for each rank (a strategy, gradients sent as codes) trains on as many as have exported it.

    Args:
        lr_scheduler: the schedule, a function of the number of updates, where the artefact's was Python that could
            not be exported. (Or call `trainer.set_learning_rate`.)
        trust: whose code may run: "keys", this user's and that of trusted keys; a public key, "ed25519:...", that one's
            too; "file", whatever is in the file; "none", nobody's.
        steps_per_call: how many batches a call takes, as `mx.compile` has it: artefacts do not say.

    Raises:
        ArgumentError: the name of the file is empty.
        OSError: the file cannot be read.
        FormatError: it is no artefact, damaged, or of a newer version; nothing of it has been executed.
        MXNetError: a schedule for an artefact that has its own; another number of ranks than it is for.
        ValueError: `trust` is none of these, or `steps_per_call` no number from 1 on.
    """
    check_name("mx.load", path, "mx.load('step.gga')")
    signing.check_trust(trust)
    most = steps_per_call_of(steps_per_call)
    artefact = file.read(path)
    try:
        entries.check(artefact)
        verdict = signing.judge(artefact, trust)
        step = ExportedStep(artefact, lr_scheduler, verdict, most)
    except Exception as error:  # what a strange structure leads to may be anything
        if isinstance(error, MXNetError) and not isinstance(error, FormatError):
            raise
        message = f"{artefact.path} is no artefact of this version: {type(error).__name__}: {error}"
        raise FormatError(with_user_location(message, help="step.export(path) writes artefacts")) from error
    if not verdict.trusted and trust != signing.NONE:
        warn(f"{artefact.path}: {verdict.why}; its code is not run, and what is called will be compiled again")
    return step


class ExportedNet(Block):
    """The parameters of an exported step; a call predicts."""

    def __init__(self, parameters: Mapping[str, Parameter], predict: Callable[..., Any]):
        super().__init__(prefix="")
        self._of, self._predict = dict(parameters), predict
        for parameter in parameters.values():
            self.params._params[parameter.name] = parameter

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        return dict(self._of)

    def forward(self, *inputs: Any) -> Any:
        """The net's output, layers in prediction mode."""
        return self._predict(*inputs)


class ExportedStep(TrainStep):
    """A training step from an artefact: `TrainStep` in all that does not need the program that it was made from.

    It runs on batches of the shapes that it was exported for. `trainer` has the optimizer's rate and settings, `net`
    the parameters.
    """

    def __init__(
        self,
        artefact: Artefact,
        lr_scheduler: Callable[[int], float] | None,
        verdict: Verdict,
        steps_per_call: int | None = None,
    ):
        told = artefact.told
        _check_ranks(told)
        rollback = random.checkpoint({"": (cpu(), 0)})
        parameters = {p["key"]: _parameter(p) for p in told["parameters"]}
        rollback()  # nothing has been drawn: values come from the file
        net = ExportedNet(parameters, lambda *inputs: self.predict(*inputs))
        asked = {**told["options"], "norm_type": float(told["options"].get("norm_type", 2.0))}
        options = Options(precision=precision_of(told["precision"]), steps_per_call=steps_per_call, **asked)
        self._begin(_trainer(told, parameters, lr_scheduler), options, net, None)
        self._verdict, unfit = verdict, compatibility.misfit(told)
        if unfit and verdict.trusted:
            warn(f"{artefact.path}: {unfit}; what is called will be compiled again")
        self._specializations: ExportedSpecializations = ExportedSpecializations(
            artefact, self, {p.name: p for p in parameters.values()}, verdict.why or unfit
        )
        groups = {WEIGHTS: artefact.under(file.PARAMS), STATES: artefact.under(file.STATES)}
        if self.trainer is not None:
            content = Content(0, groups | {REST: artefact.under(file.REST)}, told["about"])
            of = (world().rank, world().size) if RANKS in told["about"] else ()  # it holds what each rank had
            checkpoint.put_all(*checkpoint.ready(self, content, *of))
        else:
            for key, array in groups[WEIGHTS].items():
                parameters[key].set_data(array)

    def batches(self, mode: str) -> list[tuple[TensorType, ...]]:
        """The types of the batches that a mode was exported for."""
        parts = micro_batches_of_rank(self) if mode == "step" else 1
        name = "backward" if mode == "step" and self.options.micro_batches else mode
        found = [e["batch"] for e in self._specializations.artefact.told["entries"] if e["mode"] == name]
        return [longer(tuple(_type(*each) for each in batch), parts) for batch in found]

    def export(self, path: str | os.PathLike[str], **how: Any) -> None:
        """Write the artefact again, as the training is now: code, batches and modes are those it was exported with.

        It is signed where this user exported that code on this machine: nobody vouches for the code of others.

        Raises:
            ArgumentError: the name of the file is empty.
            OSError: the file cannot be written.
            MXNetError: batches, modes or a target are asked for, which take the program; or averages are shown.
        """
        check_name("export", path, "step.export('step.gga')")
        if asked := [name for name, value in how.items() if value is not None]:
            help = "say so where the step is compiled, in the program that it comes from"
            raise MXNetError(
                with_user_location(f"a loaded step has the code of its artefact alone: no {asked[0]}=", help=help)
            )
        artefact = self._specializations.artefact
        groups, about = current(self)
        arrays = {name: a for name, a in artefact.arrays.items() if not name.startswith(tuple(OF_GROUPS.values()))}
        held = {name: array.storage.array for name, array in self._specializations.arrays.items()}
        captured = {artefact.told["states"][name]["value"]["tensor"]: array for name, array in held.items()}
        told = {key: value for key, value in artefact.told.items() if key not in file.WRITTEN}
        sign = signing.signatures if self._verdict.mine else file.unsigned
        by_one_of_all(self, lambda: file.write(path, {**told, "about": about}, arrays | captured | groups, sign))


def _check_ranks(told: Mapping[str, Any]) -> None:
    """Refuse other ranks than it is compiled for: what one rank has exported to train has no sum over ranks; what is
    divided among ranks, or compressed to codes, has parts of as many ranks as have exported it."""
    size = world().size
    if file.is_for_its_ranks(told) and size != told["ranks"]:
        message = f"the artefact is compiled for {told['ranks']} ranks, and there are {size}"
        help = f"start {told['ranks']}: gluongraph run -n {told['ranks']}; or export the step on {size}"
        raise MXNetError(with_user_location(message, help=help))
    modes = [MODES_BY_NAME[entry["mode"]] for entry in told["entries"]]
    if (
        told.get("ranks") != 1
        or told["options"].get("micro_batches")
        or not any(mode.gradients and not mode.adds for mode in modes)
    ):
        return
    if size > 1:
        message = f"the artefact was exported by one rank: its code has no sum over the {size} ranks that there are"
        help = "export it on two ranks or more: what they export trains on any number"
        raise MXNetError(with_user_location(message, help=help))


def _parameter(told: Mapping[str, Any]) -> Parameter:
    stype = told.get("grad_stype", "default")
    made = Parameter(told["name"], told["grad_req"], told["shape"], told["dtype"], grad_stype=stype)
    made.initialize(initializer.Zero(), cpu())
    return made


def _trainer(
    told: Mapping[str, Any], parameters: Mapping[str, Parameter], schedule: Callable[[int], float] | None
) -> Trainer | None:
    if told["optimizer"] is None:
        return None
    mine = sorted((p for p in told["parameters"] if p["index"] is not None), key=lambda p: p["index"])
    states: dict[TensorType, Mapping[str, TensorType]] = {
        _type(p["dtype"], p["shape"]): {name: _type(*type) for name, type in p["states"].items()}
        for p in mine
        if "states" in p
    }
    exchange = told.get("exchange", {})
    states |= _states_of_shards(exchange.get("buckets", {}), {p["key"]: p for p in mine})
    optimizer = optimizer_of(told["optimizer"], told["about"]["parts"]["progress"], states, schedule)
    return Trainer(
        [parameters[p["key"]] for p in mine],
        optimizer,
        kvstore="dist_sync" if "ranks" in told else "device",
        compression_params=exchange.get("compression"),
        strategy=exchange.get("strategy"),
    )


def _states_of_shards(buckets: Mapping[str, Any], of: Mapping[str, Any]) -> Shapes:
    """The states of a rank's parts of parameters."""
    found: dict[TensorType, dict[str, TensorType]] = {}
    for bucket in buckets.values():
        first = of[bucket["parameters"][0]]
        types = {name: _type(dtype, [bucket["elements"]]) for name, (dtype, _) in first["states"].items()}
        found[_type(first["dtype"], [bucket["elements"]])] = types
    return found


def _type(dtype: str, shape: Sequence[int]) -> TensorType:
    return TensorType(tuple(shape), dtype)


@dataclass(frozen=True)
class TapeTable(ScalarTable):
    """The scalars of an update, from a tape."""

    tape: Tape
    steps: Callable[[], Mapping[str, float]]  # the variables that are the step's own

    def values(self, optimizer: Optimizer) -> list[float]:
        assert isinstance(optimizer, ExportedOptimizer)
        own = self.steps()
        known = {name: own[name] if name in own else optimizer.variable(name) for name in self._variables}
        found = self.tape.run(known)
        return [found[SCALAR + key] for key in self.keys]

    def is_constant(self, optimizer: Optimizer) -> bool:
        """Does the tape read settings only, nothing that an update or the caller's schedule changes?"""
        assert isinstance(optimizer, ExportedOptimizer)
        return not (optimizer.made_by_caller or self._counts)

    @cached_property
    def _counts(self) -> bool:
        """Does the tape read anything that an update changes?"""
        return any(name.startswith((how.T, how.UPDATES, how.CARRIED)) for name in self._variables)

    @cached_property
    def _variables(self) -> list[str]:
        return sorted(self.tape.variables)

    def holds(self, optimizer: Optimizer) -> bool:
        return all(len({optimizer.alike(i) for i in members}) == 1 for members in self.groups)


class ExportedSpecializations(Specializations):
    """The entry points of an artefact, loaded as they are called for."""

    def __init__(self, artefact: Artefact, step: ExportedStep, parameters: Mapping[str, Parameter], anew: str):
        def no_program(*args: Any, **how: Any) -> Any:
            raise MXNetError("an artefact holds no program that could be traced")

        super().__init__(
            no_program, no_program, step.trainer, no_program, step.options, step.averages, step.accumulator
        )
        self.artefact, self.step = artefact, step
        self.anew = anew  # why its code is not run and its graphs are compiled again; empty where it is
        self.entries = {(e["mode"], _types(e["batch"])): e for e in artefact.told["entries"]}
        self.arrays: dict[str, NDArray] = {}  # captures
        self.parameters = parameters

    def prepare(self, trainer: Trainer, batch: Sequence[Any]) -> None:
        trainer.prepare()

    def check_clipping(self, clips: bool) -> None:
        """Refuse other programs than the artefact has.

        Raises:
            UnsupportedError: its programs clip and are not to, or the other way round.
        """
        if clips != (self.options.clip_norm is not None):
            message = f"clip_norm, in an artefact whose programs {'do not clip' if clips else 'clip'} gradients"
            raise UnsupportedError(with_user_location(message, help="set it before the export"))

    def _compile(
        self,
        mode: Mode,
        arrays: Sequence[Array],
        contexts: tuple[Context, ...],
        tune: float = 0.0,
        padding: object = None,
    ) -> Specialization:
        if tune:
            raise MXNetError(
                with_user_location("an artefact has its code already", help="tune the step before it is exported")
            )
        types = tuple((a.shape, a.dtype) for a in arrays)
        if (told := self.entries.get((mode.name, types))) is None:
            known = [t for name, t in self.entries if name == mode.name]
            here = "; ".join(map(_listed, known)) or "no call of this mode at all"
            what = "compute a micro-batch of" if mode.name == "backward" else mode.name
            message = f"the artefact holds no code to {what} {_listed(types)}; it was exported for {here}"
            raise ShapeError(
                with_user_location(message, help="step.export(path, batch_sizes=[...]) compiles for several")
            )
        self._check_buckets()
        specialization = ExportedSpecialization(told, self)
        if not mode.traces and mode.gradients and specialization.names != self.accumulator.names:
            raise MXNetError(
                with_user_location(
                    "apply: gradients of other parameters have been accumulated than it was exported for"
                )
            )
        if (
            specialization.table is not None
            and self.trainer is not None
            and not specialization.table.holds(self.trainer.optimizer)
        ):
            raise _come_apart()
        return specialization

    def _check_buckets(self) -> None:
        """Raise where other parameters would be divided among ranks together than when it was exported."""
        sharding = self.trainer.exchange.sharding if self.trainer is not None else None
        told = self.artefact.told.get("exchange", {}).get("buckets", {})
        name_of = {row["key"]: row["name"] for row in self.artefact.told["parameters"]}
        wanted = {name: tuple(name_of[key] for key in bucket["parameters"]) for name, bucket in told.items()}
        buckets = sharding.buckets if sharding is not None else ()
        if {bucket.name: bucket.parameters for bucket in buckets} != wanted:
            raise _come_apart()

    def state(self, names: Iterable[str]) -> dict[str, NDArray]:
        """The arrays behind states, by the names of graph inputs."""
        return {name: self._array(name, self.artefact.told["states"][name]) for name in names}

    def _array(self, name: str, told: Mapping[str, Any]) -> NDArray:
        value, trainer, step = told["value"], self.trainer, self.step
        if "cast" in value:
            return copy_of(self.state([value["cast"]])[value["cast"]], told["dtype"])
        place: str = value.get("tensor", "")
        if place.startswith(file.CAPTURES):
            if name not in self.arrays:
                self.arrays[name] = NDArray(self.artefact.arrays[place].copy())
            return self.arrays[name]
        if name in self.parameters:
            return self.parameters[name].data()
        assert trainer is not None
        if name in (SCALE, GOOD):
            return trainer.scaler.state[name]
        if name.startswith(AVERAGE) and step.averages is not None:
            return step.averages.inputs(trainer, [name.removeprefix(AVERAGE)])[name]
        if name.startswith(RESIDUAL):
            return trainer.residual_arrays([name.removeprefix(RESIDUAL)])[name]
        if value.get("shard") == name:
            return trainer.replica(name)
        if name.startswith(WINDOW):
            return step.accumulator.inputs(trainer, [name.removeprefix(WINDOW)])[name]
        if name.startswith(GRAD) and (grad := trainer.replica(name.removeprefix(GRAD)).grad) is not None:
            return grad
        return trainer.state_arrays([name.partition("/")[0]])[name]


def _come_apart() -> MXNetError:
    """The error of parameters that were updated by equal numbers, and are no longer."""
    message = "lr_mult, wd_mult or counts of parameters have come apart since the export"
    help = "set them before the export, or in one way for all that were equal then"
    return MXNetError(with_user_location(message, help=help))


def _types(batch: Iterable[Sequence[Any]]) -> Types:
    from gluongraph.dtypes import numpy_dtype

    return tuple((tuple(shape), numpy_dtype(dtype)) for dtype, shape in batch)


def _listed(types: Types) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in types) or "nothing"


class _Flag:
    """What is left of `detect_anomaly` and `error_if_nonfinite`: whether, not where."""

    def check(self, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Raises NotFiniteError: the flag among the results is false."""
        if not results[SOUND]:
            help = "the step that was exported names the op, on the same batch"
            raise NotFiniteError(with_user_location("the step has made a NaN or an infinity", help=help))


class ExportedSpecialization(Specialization):
    """One entry point of an artefact, bound to its memory."""

    def __init__(self, told: Mapping[str, Any], specializations: ExportedSpecializations):
        trainer, self.told, self.specializations = specializations.trainer, told, specializations
        self._lower = self._lower_again
        self.traced = Traced(Graph({}, {}, {}), structure.from_data(told["results"]), {}, {}, ())
        self.shared, self.names, self.masked = None, tuple(told["names"]), bool(told["masked"])
        self.draws = {name: (Context(kind, number), count) for name, (kind, number, count) in told["draws"].items()}
        self.guard: Any = _Flag() if told["guarded"] else None
        self.state = specializations.state(name for name, role in told["roles"].items() if role == "state")
        self.table = self._table(told, specializations)
        self.added = {n: self.state[GRAD + n] for n in self.names if GRAD + n in self.state}
        self.copies = Copies(told["updates"], self.state, specializations.options.precision.low)
        spent = [n for n in self.names if GRAD + n not in {*told["outputs"], *self.state}]
        updates = self.table is not None or told["mode"] == "accumulate"
        leaves = [specializations.parameters[n].data()._leaf for n in spent] if updates else []
        self.spends = [leaf for leaf in leaves if leaf is not None]
        self._connect(self._runner(), trainer, ())

    def _table(self, told: Mapping[str, Any], specializations: ExportedSpecializations) -> TapeTable | None:
        if told["scalars"] is None:
            return None
        tape, step = Tape.from_data(told["scalars"]), specializations.step

        def steps() -> dict[str, float]:
            decay = step.averages.decay if step.averages is not None else 0.0
            return {how.EMA: decay, how.CLIP: step.options.clip_norm or 0.0}

        keys = tuple(name.removeprefix(SCALAR) for name in tape.values)
        groups = tuple(map(tuple, told["groups"]))
        return TapeTable(keys, tuple(told["counts"]), groups, (), self.draws, tape, steps)

    def _runner(self) -> Any:
        if self.specializations.anew or any(debug.how()):
            return self.compiled.executor(self._memory())
        arrays, place = self.specializations.artefact.arrays, self.told["code"]
        gpu = self.specializations.artefact.told["target"]["kind"] == "cuda"
        binaries = {name.removeprefix(place + "/"): a for name, a in arrays.items() if name.startswith(place + "/")}
        module = code.module_of(arrays[place], self.specializations.artefact.path, gpu, binaries)
        program = entries.program_of(self.told, self.specializations.artefact)
        segments = [loader.function(module, name) for name in program.segments]
        text = self.text if program.steps else ""
        if gpu:
            return DeviceExecutor(segments, program, self._memory(), refuse=self._refuse, text=text)
        repeated = loader.optional_function(module, REPEATED)
        return Executor(segments, program, self._memory(), self._refuse, text, repeated)

    @property
    def updated(self) -> tuple[str, ...]:
        return tuple(self.told["updates"])

    @property
    def text(self) -> str:
        return described(self._graph())

    def _refuse(self, values: Mapping[str, Array]) -> NoReturn:
        index_checks.raise_error(self._graph(), values)

    def _graph(self) -> Graph:
        return graph_of(self.told, self.specializations.artefact.arrays[self.told["graph"]].tobytes().decode())

    def _lower_again(self) -> Compiled:
        """The graph after all stages, gone through again here."""
        from gluongraph.compiler.lower import lower
        from gluongraph.compiler.memory_options import memory_options_of

        options = self.specializations.options
        memory_options = memory_options_of(options.remat, options.memory_budget, options.activations)
        try:
            return lower(self._graph(), self.told["roles"], self.told["forward"], memory_options=memory_options)
        except (CompileError, ImportError) as error:
            if not (why := self.specializations.anew):
                raise
            message = f"{self.specializations.artefact.path} cannot be compiled again here: {error}"
            help = f"its own code is not run, as {why}: have it signed by a key that is trusted here, or load it where "
            raise CompileError(
                with_user_location(message, help=help + "the compiler is, or with trust='file'")
            ) from error

    def _held(self) -> dict[str, Array]:
        return {}

    @property
    def samples(self) -> int:
        trainer = self.specializations.trainer
        return int(self.told["samples"]) * (trainer.exchange.ranks if trainer is not None else 1)
