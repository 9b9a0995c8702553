"""What a compiled step is made of: graph, plan, kernels, memory, and how long they take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gluongraph.compiler.interpreted import Interpreted
from gluongraph.compiler.memory_report import Footprint
from gluongraph.errors import MXNetError
from gluongraph.gluon.step_lock import serialized
from gluongraph.gluon.trainer import Trainer
from gluongraph.host.interrupts import import_whole
from gluongraph.ir.graph import Graph
from gluongraph.ir.plan import Launch, Plan
from gluongraph.runtime.executor import Executor
from gluongraph.step.specialization import Specialization
from gluongraph.step.specializations import Specializations
from gluongraph.storage import Array
from gluongraph.tracing.compressed_exchange import wire_bytes

if TYPE_CHECKING:
    from gluongraph.codegen.cache.artifacts import Artefact
    from gluongraph.compiler.tuning import Tuning
    from gluongraph.runtime.profile import Profile


class StepInspection:
    """What can be asked of a compiled step, besides running it. A `TrainStep` is one."""

    trainer: Trainer | None
    step_lock: threading.RLock
    _specializations: Specializations

    @property
    def graph(self) -> Graph:
        """The graph of the last call, as traced: forward, gradients and updates.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> loss = step(x, y)
        >>> "d_weight" in step.graph.updates
        True
        """
        return self._specializations.last.compiled.traced

    @property
    def wire_bytes(self) -> int:
        """The bytes that each rank sends in a call like the last one: the payload of its collectives.

        Of n ranks each sends 2 (n - 1) / n times the bytes of gradients that are summed as they are, and n - 1 times
        those of its codes with compression_params. With deterministic=True running statistics are summed, too.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> loss = step(nd.ones((4, 2)), nd.zeros((4, 1)))
        >>> step.wire_bytes  # one process
        0
        """
        return wire_bytes(self.graph) + self._specializations.last.sent_before

    @property
    def plan(self) -> Plan:
        """The plan of the last call: kernels, order, memory. `print(show_plan(step.plan))` shows it.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> loss = step(x, y)
        >>> len(step.plan.kernels) > 0
        True
        """
        return self._specializations.last.compiled.plan

    @property
    def artefact(self) -> Artefact:
        """The compiled code of the last call, and where it lies.

        Raises:
            MXNetError: graphs are interpreted.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> loss = step(x, y)
        >>> type(step.artefact).__name__
        'Artefact'
        """
        artefact = self._specializations.last.compiled.artefact
        if artefact is None:
            raise MXNetError("there is no compiled code: GG_BACKEND or GG_CHECK has graphs interpreted")
        return artefact

    @property
    def kernels(self) -> dict[str, Launch]:
        """The distinct kernels of the last call, by name.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> loss = step(x, y)
        >>> len(step.kernels) > 0
        True
        """
        return self.plan.kernels

    @serialized
    def profile(self, *batch: Any, repeat: int = 20, roofline: bool = True) -> Profile:
        """Each kernel of a step on this batch: time, bytes, operations, and how much of the roofline it reaches.

        Rows print as a table; `.sorted("lost")` puts first what could gain most. Weights stay as they are. With
        `roofline` the first profile of a process measures the machine, which takes two seconds; on a GPU nothing is
        measured but times.

        Raises:
            MXNetError: graphs are interpreted.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> profile = step.profile(x, y, repeat=1, roofline=False)
        >>> profile.seconds > 0
        True
        """
        from gluongraph.compiler.machine_peaks import machine
        from gluongraph.runtime.profile import profile

        specialization, arrays = self._main(batch)
        runner = specialization.runner
        if isinstance(runner, Interpreted):
            raise MXNetError("nothing to profile: GG_BACKEND or GG_CHECK has graphs interpreted")
        inputs = [arrays[i] for i in specialization.reads]
        measured = machine() if roofline and isinstance(runner, Executor) else None
        return profile(runner, specialization.compiled.module(), specialization.compiled.plan, inputs, repeat, measured)

    @serialized
    def tune(self, *batch: Any, seconds: float = 60.0) -> Tuning:
        """Measure on this machine which ways to write the kernels of a step on this batch are fastest: a table.

        What is found is kept for all steps with such kernels, and this one is compiled anew with it. No kernel is begun
        after so many seconds; what was measured before is not measured again. See docs/tuning.md.

        Raises:
            ValueError: that is no number of seconds.
            MXNetError: kernels do not run on this CPU: another target, or graphs that are interpreted.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> step.tune(x, y, seconds=-1)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
            ...
        ValueError: no number of seconds
        """
        import_whole("gluongraph.compiler.tuning")
        from gluongraph.compiler.tuning import seconds_of

        tuning = self._main(batch, seconds_of(seconds))[0].compiled.tuning
        if tuning is None:
            raise MXNetError("nothing to tune: what is measured is code for this machine's CPU, not interpreted")
        return tuning

    @serialized
    def memory(self, *batch: Any) -> Footprint:
        """What a step on this batch holds in memory, by what it is for. It is compiled where need be, and not run.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> step.memory(x, y).parameters > 0  # bytes
        True
        """
        return self._main(batch)[0].compiled.footprint

    @serialized
    def reads(self, *batch: Any) -> dict[str, Array]:
        """All that the graph of a step on this batch reads, by the names of its inputs.

        Parameters, states and the batch are live memory, numbers of the optimizer those of the last call.

        >>> import gluongraph as mx
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
        >>> net.initialize(mx.init.One())
        >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        >>> x, y = nd.ones((4, 2)), nd.zeros((4, 1))
        >>> "d_weight" in step.reads(x, y)
        True
        """
        specialization, arrays = self._main(batch)
        data = {f"data{i}": array for i, array in enumerate(arrays)}
        return {name: array for name, array in (specialization.held() | data).items() if name in self.graph.inputs}

    def _main(self, batch: Sequence[Any], tune: float = 0.0) -> tuple[Specialization, list[Array]]:
        """What a call is for this batch: a step, or without trainer a prediction; tuned for so many seconds."""
        if self.trainer is None:
            return self._specializations.find("predict", batch, tune)
        self._specializations.prepare(self.trainer, batch)
        return self._specializations.find("step", batch, tune)
