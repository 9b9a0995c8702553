"""What `self.log` gives: values accumulated over the batches of an epoch, within the compiled step where they come
from one, and read only when somebody looks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.eager.tape import STATE
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.metric_objects import computed_alone, is_metric, number_of
from gluongraph.ndarray import NDArray

REDUCTIONS = ("mean", "sum", "max", "min")
OF_DATA = -1  # in place of a number of samples: the step computes it of its batch


@dataclass(frozen=True)
class Logged:
    """How a value is logged: the arguments of `self.log`, and the hook `fx` that it is called in."""

    fx: str
    name: str
    prog_bar: bool = False
    logger: bool = True
    on_step: bool = False
    on_epoch: bool = True
    reduce_fx: str = "mean"
    sync_dist: bool = False
    add_dataloader_idx: bool = True
    batch_size: float | None = None
    rank_zero_only: bool = False
    dataloader_idx: int | None = None

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What tells it from other values."""
        return self.fx, self.name, self.dataloader_idx if self.add_dataloader_idx else None

    @property
    def full_name(self) -> str:
        """The name with that of its loader, where there are several."""
        if self.add_dataloader_idx and self.dataloader_idx is not None:
            return f"{self.name}/dataloader_idx_{self.dataloader_idx}"
        return self.name

    def forked_name(self, on_step: bool) -> str:
        """The name as loggers know it: with _step or _epoch, where the value is logged for both."""
        name = self.name
        if self.on_step and self.on_epoch:
            name += "_step" if on_step else "_epoch"
        return name + self.full_name[len(self.name) :]


@dataclass(frozen=True)
class Observed:
    """A logged value that comes of torchmetrics: `source` is a metric, or what one gives for a batch.

    With `whole` it is a dict, each value of which is logged under its own name.
    """

    logged: Logged
    source: Any
    whole: bool = False


def reduction_of(given: Any) -> str:
    """The name of a reduction: one of "mean", "sum", "max", "min", or a function of that name.

    Raises:
        MisconfigurationException: there is no such reduction.

    >>> reduction_of(max)
    'max'
    """
    given = getattr(given, "keywords", {}).get("real_callable", given)  # what torch.export makes of max and min
    name = given if isinstance(given, str) else getattr(given, "__name__", repr(given))
    name = {"avg": "mean", "amax": "max", "amin": "min"}.get(name.lower(), name.lower())
    if name not in REDUCTIONS:
        message = f"reduce_fx={given!r}: there are {', '.join(map(repr, REDUCTIONS))}"
        raise misconfigured(message, help="log the values, and reduce them in on_train_epoch_end")
    return name


class Accumulator:
    """The values that one program logs, as state of that program: the last ones, and their sums, maxima and minima.

    `record` is called while the program is traced. Each of the arrays has an element for each value.
    """

    def __init__(self, signature: tuple[Logged, ...]):
        self.signature = signature
        count = len(signature)
        self.last, self.total, self.weight = (NDArray(np.zeros(count)) for _ in range(3))
        self.high, self.low = NDArray(np.full(count, -np.inf)), NDArray(np.full(count, np.inf))
        for array in self.arrays:
            array._observes = True
        self.fresh = True  # nothing has been added since the last reset
        self.runs = 0  # when it was last added to, in the order of all accumulators

    @property
    def arrays(self) -> tuple[NDArray, ...]:
        """All of its state."""
        return self.last, self.total, self.weight, self.high, self.low

    def record(self, values: Sequence[NDArray], batch_size: int) -> None:
        """Add values, traced ones, of a batch with so many samples. After them come the numbers of samples that the
        step has computed, for those that are logged with `OF_DATA`."""
        before, STATE.recording = STATE.recording, False
        try:
            numbers = [v.detach().astype("float64").reshape(()) for v in values]
            all = nd.stack(*numbers[: len(self.signature)])
            by_weight = self._weights(numbers[len(self.signature) :], batch_size)
            self.last[:] = all
            if any(each.on_epoch and each.reduce_fx in ("mean", "sum") for each in self.signature):
                self.total[:] = self.total + all * by_weight
                self.weight[:] = self.weight + by_weight
            if any(each.on_epoch and each.reduce_fx == "max" for each in self.signature):
                self.high[:] = nd.maximum(self.high, all)
            if any(each.on_epoch and each.reduce_fx == "min" for each in self.signature):
                self.low[:] = nd.minimum(self.low, all)
        finally:
            STATE.recording = before

    def _weights(self, computed: Sequence[NDArray], batch_size: int) -> NDArray:
        """The weight of each value: a number, or the next of those that the step has `computed`."""
        if not computed:
            return NDArray(np.array([self._weight(logged, batch_size) for logged in self.signature]))
        following = iter(computed)
        own = [next(following) if logged.batch_size == OF_DATA else None for logged in self.signature]
        weights = [
            NDArray(np.array(self._weight(logged, batch_size))) if each is None or logged.reduce_fx != "mean" else each
            for logged, each in zip(self.signature, own, strict=True)
        ]
        return nd.stack(*weights)

    def _weight(self, logged: Logged, batch_size: int) -> float:
        if logged.reduce_fx != "mean":
            return 1.0
        return float(batch_size if logged.batch_size is None else logged.batch_size)

    def reset(self) -> None:
        """Begin anew."""
        if not self.fresh:
            for array, value in ((self.total, 0), (self.weight, 0), (self.high, -math.inf), (self.low, math.inf)):
                array[:] = value
            self.fresh = True

    def state(self) -> dict[str, list[float]]:
        """All of its numbers, for a checkpoint."""
        return {name: getattr(self, name).asnumpy().tolist() for name in ("last", "total", "weight", "high", "low")}


@dataclass
class Entry:
    """One logged value: what has come from Python, and the accumulators that hold it, with its number in each."""

    logged: Logged
    last: float = 0.0
    total: float = 0.0
    weight: float = 0.0
    high: float = -math.inf
    low: float = math.inf
    live: bool = False  # has something come since the last reset?
    held: list[tuple[Accumulator, int]] = field(default_factory=list)
    synced: float | None = None  # the value of the epoch over all ranks

    def add(self, value: float, weight: float) -> None:
        """Add a value that Python has."""
        self.live, self.synced, self.last = True, None, value
        self.total += value * weight
        self.weight += weight
        self.high, self.low = _bound("max", self.high, value), _bound("min", self.low, value)

    @property
    def valid(self) -> bool:
        """Is there a value since the last reset?"""
        return self.live or any(not accumulator.fresh for accumulator, _ in self.held)

    def seen(self, on_step: bool) -> bool:
        """Is there a value for those who look after a step, or at the epoch?"""
        return self.valid and (self.logged.on_step if on_step else self.logged.on_epoch)

    def of_step(self) -> float:
        """The last value."""
        newest = max((pair for pair in self.held if not pair[0].fresh), key=lambda p: (p[0].runs, p[1]), default=None)
        return self.last if newest is None else float(newest[0].last.asnumpy()[newest[1]])

    def parts(self) -> tuple[float, float]:
        """Sum and weight over the batches so far, or for a maximum or minimum that value and 1."""
        held = [(a, i) for a, i in self.held if not a.fresh]
        if self.logged.reduce_fx in ("max", "min"):
            name = "high" if self.logged.reduce_fx == "max" else "low"
            values = [float(getattr(a, name).asnumpy()[i]) for a, i in held]
            return _bound(self.logged.reduce_fx, getattr(self, name), *values), 1.0
        total = self.total + sum(float(a.total.asnumpy()[i]) for a, i in held)
        weight = self.weight + sum(float(a.weight.asnumpy()[i]) for a, i in held)
        return total, weight

    def of_epoch(self) -> float:
        """The value over all batches so far."""
        if self.synced is not None:
            return self.synced
        return self.of_parts(*self.parts())

    def of_parts(self, total: float, weight: float) -> float:
        """The value of a sum and a weight; a mean of nothing is NaN."""
        if self.logged.reduce_fx != "mean":
            return total
        return total / weight if weight else math.nan

    def reset(self) -> None:
        """Begin anew."""
        self.total, self.weight, self.high, self.low = 0.0, 0.0, -math.inf, math.inf
        self.live, self.synced = False, None

    def state(self, names: Mapping[int, str]) -> dict[str, Any]:
        """Its numbers since the last reset, for a checkpoint; `names` are those of torchmetrics' objects, by id."""
        total, weight = self.parts()
        bound = self.logged.reduce_fx in ("max", "min")
        return {"last": self.of_step(), "total": total, "weight": weight, "bound": bound}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from the numbers of a checkpoint."""
        self.live, self.last = True, state["last"]
        if state["bound"]:
            self.high = self.low = state["total"]
        else:
            self.total, self.weight = state["total"], state["weight"]


def _bound(name: str, *values: float) -> float:
    """The largest or the least of values; NaN if one of them is NaN, which Python's max and min pass over."""
    return float(np.max(values) if name == "max" else np.min(values))


@dataclass
class MetricEntry(Entry):
    """A logged object of torchmetrics: it keeps what it has seen, and its values are what it says."""

    metric: Any = None
    of_batch: float | None = None  # what it gave for the last batch; None where it was only updated

    def observe(self) -> None:
        """It has seen a batch."""
        self.live, self.synced = True, None
        given = getattr(self.metric, "_forward_cache", None)
        self.of_batch = None
        if self.logged.on_step and given is not None:
            self.of_batch = number_of(self.logged.name, self.metric, given)

    def seen(self, on_step: bool) -> bool:
        """Is there a value for those who look after a step, or at the epoch?"""
        return super().seen(on_step) and not (on_step and self.of_batch is None)

    def of_step(self) -> float:
        """What it gave for the last batch."""
        return math.nan if self.of_batch is None else self.of_batch

    def of_epoch(self) -> float:
        """What it has computed of all batches so far; on several ranks of this rank's, until they have synchronized."""
        if self.synced is None:
            self.synced = number_of(self.logged.name, self.metric, computed_alone(self.metric))
        return self.synced

    def synchronize(self) -> None:
        """What it computes of the batches of all ranks, which call this together."""
        self.synced = number_of(self.logged.name, self.metric, self.metric.compute())

    def reset(self) -> None:
        """Begin anew."""
        if self.live:
            self.metric.reset()
        self.live, self.synced, self.of_batch = False, None, None

    def state(self, names: Mapping[int, str]) -> dict[str, Any]:
        """The name of the metric, whose own state is saved with the module."""
        return {"metric": names[id(self.metric)], "of_batch": self.of_batch}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.live, self.of_batch = True, state["of_batch"]


Metrics = dict[str, dict[str, float]]


class Store:
    """The logged values of a training, or of an evaluation."""

    def __init__(self, training: bool):
        self.training = training
        self.entries: dict[tuple[str, str, int | None], Entry] = {}
        self.accumulators: dict[tuple[Logged, ...], Accumulator] = {}
        self.dataloader_idx: int | None = None
        self._runs = 0

    def log(self, logged: Logged, value: float, batch_size: int) -> None:
        """Add a value that Python has."""
        own = batch_size if logged.batch_size is None else logged.batch_size
        self._entry(logged).add(value, float(own) if logged.reduce_fx == "mean" else 1.0)

    def accumulator(self, signature: tuple[Logged, ...]) -> Accumulator:
        """Where a program accumulates the values that it logs."""
        if signature not in self.accumulators:
            made = self.accumulators[signature] = Accumulator(signature)
            for number, logged in enumerate(signature):
                self._entry(logged).held.append((made, number))
        return self.accumulators[signature]

    def note(self, accumulator: Accumulator) -> None:
        """A program has added to it."""
        accumulator.fresh = False
        self._runs += 1
        accumulator.runs = self._runs

    def observe(self, observed: Iterable[Observed], results: Sequence[Any], batch_size: int) -> None:
        """Log what objects of torchmetrics have given for a batch: `results` are those of the calls of its step."""
        for each in observed:
            if is_metric(each.source):
                self.log_metric(each.logged, each.source)
                continue
            given = each.source.of(results)
            if not each.whole:
                self.log(each.logged, number_of(each.logged.name, each.source.metric, given), batch_size)
                continue
            if not isinstance(given, Mapping):
                message = f"self.log_dict(...): {type(each.source.metric).__name__} gives one value, no dict"
                raise misconfigured(message, help="self.log(name, value)")
            for name, value in given.items():
                self.log(replace(each.logged, name=name), number_of(name, each.source.metric, value), batch_size)

    def log_metric(self, logged: Logged, metric: Any) -> None:
        """Log an object of torchmetrics, which has seen a batch."""
        entry = self._entry(logged, metric)
        assert isinstance(entry, MetricEntry)
        entry.observe()

    def _entry(self, logged: Logged, metric: Any = None) -> Entry:
        made = Entry(logged) if metric is None else MetricEntry(logged, metric=metric)
        found = self.entries.setdefault(logged.key, made)
        alike = replace(found.logged, batch_size=logged.batch_size)  # each batch may have its own size
        if alike != logged or getattr(found, "metric", None) is not metric:
            message = f"self.log({logged.name!r}, ...) is called twice in {logged.fx} with different arguments"
            raise misconfigured(message, help="log it once, or under two names")
        return found

    def metrics(self, on_step: bool) -> Metrics:
        """The values for callbacks, loggers and the progress bar: those of the last step, or of the epoch so far."""
        made: Metrics = {"callback": {}, "log": {}, "pbar": {}}
        for entry in list(self.entries.values()):
            logged = entry.logged
            if not entry.seen(on_step) or logged.dataloader_idx != self.dataloader_idx:
                continue
            value = entry.of_step() if on_step else entry.of_epoch()
            forked = logged.forked_name(on_step)
            if logged.logger:
                made["log"][forked] = value
            if self.training or (logged.on_epoch and not on_step):
                made["callback"][logged.full_name] = made["callback"][forked] = value
            if logged.prog_bar:
                made["pbar"][forked] = value
        return made

    @property
    def logs_steps(self) -> bool:
        """Is there a value that loggers get for steps?"""
        return any(e.logged.on_step and e.logged.logger for e in self.entries.values())

    def synchronize(self, reduce: Callable[[list[float], str], list[float]], agree: Callable[[str], None]) -> None:
        """Reduce the values of the epoch that are logged with sync_dist over all ranks, as one vector each for sums and
        maxima. All ranks call this; `agree` compares what they log."""
        found = [e for e in self.entries.values() if e.logged.on_epoch and e.valid]
        metrics = [e for e in found if isinstance(e, MetricEntry)]
        entries = [e for e in found if e.logged.sync_dist and not isinstance(e, MetricEntry)]
        agree("; ".join(sorted(f"{e.logged.full_name} {e.logged.reduce_fx}" for e in [*entries, *metrics])))
        for each in sorted(metrics, key=lambda e: (e.logged.full_name, e.logged.fx)):
            each.synchronize()
        entries.sort(key=lambda e: (e.logged.full_name, e.logged.fx))
        sums = [e for e in entries if e.logged.reduce_fx in ("mean", "sum")]
        parts = reduce([number for e in sums for number in e.parts()], "sum")
        for number, entry in enumerate(sums):
            entry.synced = entry.of_parts(*parts[2 * number : 2 * number + 2])
        for name in ("max", "min"):
            bounds = [e for e in entries if e.logged.reduce_fx == name]
            for entry, value in zip(bounds, reduce([e.parts()[0] for e in bounds], name), strict=True):
                entry.synced = value

    def reset(self) -> None:
        """Begin anew, as for the next epoch."""
        for entry in self.entries.values():
            entry.reset()
        for accumulator in self.accumulators.values():
            accumulator.reset()

    # -- checkpoints

    def state(self, metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All values since the last reset, for a checkpoint; `metrics` are the module's objects of torchmetrics."""
        names = {id(metric): name for name, metric in metrics.items()}
        return [
            {"logged": vars(entry.logged).copy()} | entry.state(names) for entry in self.entries.values() if entry.valid
        ]

    def load(self, state: Iterable[Mapping[str, Any]], metrics: Mapping[str, Any]) -> None:
        """Go on from the values of a checkpoint."""
        self.reset()
        for each in state:
            metric = metrics[each["metric"]] if "metric" in each else None
            self._entry(Logged(**each["logged"]), metric).load(each)
