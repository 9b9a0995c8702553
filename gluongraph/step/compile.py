"""`mx.compile`: checks the arguments, and returns a step that is traced and compiled at its first call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import Any

from gluongraph.codegen.targets import target as find_target
from gluongraph.compiler.lower import cast_to, lower
from gluongraph.compiler.memory_options import memory_options_of
from gluongraph.errors import with_user_location
from gluongraph.gluon.torch_trainer import is_of_torch
from gluongraph.gluon.trainer import Trainer
from gluongraph.host import services
from gluongraph.host.interrupts import import_whole
from gluongraph.host.torch_module import FROM_TORCH, expects_tensors, is_torch_loaded, is_torch_module
from gluongraph.step import Options, TrainStep
from gluongraph.step.arguments import check_batch, check_inputs, check_outputs
from gluongraph.step.dynamic import dynamic_of
from gluongraph.step.micro_batches import micro_batches_of
from gluongraph.step.several import steps_per_call_of
from gluongraph.step.state_dtype import hold_states
from gluongraph.tracing.precision import in_whole, precision_of
from gluongraph.tracing.step_graph import check_clip_norm, check_norm_type


def compile(
    net: Any,
    loss: Callable[..., Any] | None = None,
    trainer: Any = None,
    *,
    inputs: int | None = None,
    target: str = "cpu",
    precision: str | int = "32",
    keep_grads: bool = False,
    clip_norm: float | None = None,
    grad_norm: bool = False,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    ema: float | None = None,
    detect_anomaly: bool = False,
    deterministic: bool | int = False,
    remat: str | None = None,
    memory_budget: int | str | None = None,
    optimizer_state: str | None = None,
    activations: str | None = None,
    steps_per_call: int | None = None,
    tune: bool | float = False,
    dynamic: str | bool | Mapping[int, Mapping[int, str]] | None = None,
    sizes: Any = None,
    progress: bool = True,
) -> TrainStep:
    """The whole training step of a net as one compiled call: forward, loss, backward, optimizer update.

    `compile(net, loss, trainer)` runs `loss(net(*batch[:inputs]), *batch[inputs:])`; `compile(fn, trainer=trainer)`
    runs `fn(*batch)`, which returns the loss, or (loss, metrics); `compile(net)` alone predicts. Nothing is compiled
    before the first call, which knows the shapes.

    Args:
        loss: a `gluon.loss.Loss` or a function of arrays; or a loss module or function of PyTorch's.
        inputs: how many of the batch's arrays go to the net; the rest goes to the loss. By default one, or as many as
            an imported net takes (`from_torch`, `onnx.load`).
        target: a row of `gluongraph.codegen.targets`; "cpu" is the best one for this machine.
        precision: "32"; "bf16-mixed" or "16-mixed", in which matrices are multiplied in 16 bit and all else is float32
            (with "16-mixed" the loss is scaled, and a step whose gradients overflow changes nothing); "64",
            "bf16-true" or "16-true", to which parameters and inputs of the net are cast. See docs/precision.md.
        keep_grads: write the gradients into `param.grad()` as well, as an eager backward does.
        clip_norm: gradients, divided by the batch size, are scaled so that the norm of all together is at most this.
        grad_norm: `step.grad_norm` tells the norm of all gradients of the last update; with `clip_norm` or
            `error_if_nonfinite` it does anyway.
        norm_type: which norm that is: the p of (sum |g|^p)^(1/p), above 0; with inf it is the largest |g|.
        error_if_nonfinite: where that norm is not finite, the step changes nothing and raises NotFiniteError, which
            names the first op that has made a NaN or an infinity. It costs next to nothing beside `clip_norm`.
        ema: the decay of running averages of the parameters, in `step.averages`; `step.averaged()` puts them in place.
        detect_anomaly: where loss, a gradient or a new weight, state or statistic is not finite, the step changes
            nothing and raises NotFiniteError, which names the first op that has made a NaN or an infinity.
        deterministic: the same bits on 1, 2 and 4 ranks: every batch is computed in 4 micro-batches (or the number
            given, a power of two, which is then the largest number of ranks), and gradients are summed along a tree.
        remat: compute parts of the forward again instead of keeping them for gradients: "auto" saves what memory it can
            for a tenth of the step's time, "blocks" what it can; by default only what takes next to no time is, in
            large steps. See docs/memory.md.
        memory_budget: bytes that the step may take, as "2GiB" or a number: as much is computed again as that needs. The
            first call raises MXNetError where it cannot be. `step.memory(*batch)` tells what a step will take.
        optimizer_state: "bf16" keeps the optimizer's float32 states in bfloat16 from now on, stochastically rounded.
        activations: "bf16" keeps what the forward leaves to the gradients in bfloat16; the forward itself is exact.
        steps_per_call: `step(xs, ys)` makes a step on each of up to so many batches, stacked along a new first axis,
            and returns stacked losses: the numbers of as many calls, in less time for small nets. Other methods take
            one batch. See docs/step.md.
        tune: measure on this machine, at the first call for new shapes, which ways to write its kernels are fastest:
            for so many seconds, or a minute if True. What is found is kept, for other steps too. See docs/tuning.md.
        dynamic: the axes whose extents change from call to call: "batch" for the first of every array, {0: {0: "batch",
            1: "length"}, 1: {0: "batch"}} by array and axis, or True for those that an imported net leaves free. Arrays
            are padded, so that few programs serve all lengths; results are those of exact shapes. See docs/step.md.
        sizes: what free axes are padded to: None (at most three sizes for each), "powers of two", a number whose
            multiples they are, a list of sizes, "exact"; or a dictionary of these by the names of axes.
        progress: on a terminal, compiling and tuning show how far they are, in one line; False, or GG_PROGRESS=0 in the
            environment, shows nothing.

    Raises:
        ValueError: no such precision; clip_norm or norm_type is no positive number, or ema none from 0 to below 1;
            no such number of micro-batches; no such remat, or a budget that is no number of bytes; no such form of
            states or activations; steps_per_call is no number from 1 on; `tune` is no number of seconds.
        TypeError: an argument is not what its name says; an imported net takes another number of inputs; the net gives
            several arrays to a loss of one prediction, which the first call sees.
        CompileError: there is no such target.

    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2)
    >>> net.initialize(mx.init.One())
    >>> trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> step = mx.compile(net, gluon.loss.L2Loss(), trainer)
    >>> step(nd.ones((4, 2)), nd.zeros((4, 1))).asnumpy()
    array([2., 2., 2., 2.], dtype=float32)
    """
    inputs = _count_of_inputs(net) if inputs is None else inputs
    _check_arguments(net, loss, trainer, inputs)
    if loss is not None:
        check_inputs(net, inputs)
    loss = _as_loss(loss)
    how = precision_of(precision)
    check_clip_norm(clip_norm)
    check_norm_type(norm_type)
    if ema is not None and not (isinstance(ema, Real) and 0 <= ema < 1):
        raise ValueError(with_user_location(f"ema is a decay from 0 to below 1, as 0.999; not {ema!r}"))
    free = dynamic_of(dynamic, sizes, net, inputs)
    if free is not None and deterministic:
        raise ValueError(with_user_location("dynamic, with deterministic", help="leave one of them out"))
    memory_options = memory_options_of(remat, memory_budget, activations)
    if optimizer_state is not None:
        hold_states(trainer, optimizer_state)
    seconds = 0.0
    if tune is not False:
        import_whole("gluongraph.compiler.tuning")
        from gluongraph.compiler.tuning import seconds_of

        seconds = seconds_of(tune)
    on = find_target(target)
    build = partial(lower, on=on, memory_options=memory_options, tune=seconds, progress=progress)
    cast = partial(cast_to, low=how.low, on=on) if how.low else None
    options = Options(
        keep_grads=keep_grads,
        precision=how,
        cast=cast,
        clip_norm=clip_norm,
        grad_norm=grad_norm,
        norm_type=float(norm_type),
        error_if_nonfinite=error_if_nonfinite,
        ema=ema,
        micro_batches=micro_batches_of(deterministic),
        detect_anomaly=detect_anomaly,
        target=target,
        remat=remat,
        memory_budget=memory_budget,
        activations=activations,
        steps_per_call=steps_per_call_of(steps_per_call),
    )
    cast_net, cast_loss = in_whole(how, net, loss, trainer)
    if loss is None:
        return TrainStep(cast_net, trainer, build, options=options, dynamic=free)

    def program(*batch: Any) -> Any:
        check_batch(net, loss, inputs, len(batch))
        made = cast_net(*batch[:inputs])
        check_outputs(net, loss, made)
        try:
            return cast_loss(made, *batch[inputs:])
        except TypeError as error:
            if not expects_tensors(error):
                raise
            message = "compile: the loss calls functions of PyTorch's on arrays of gluongraph's"
            raise TypeError(with_user_location(message, help="compile(net, mx.torch.Loss(loss), trainer)")) from error

    return TrainStep(program, trainer, build, predict=cast_net, options=options, inputs=inputs, dynamic=free)


def _count_of_inputs(net: Any) -> int:
    """How many arrays an imported net takes, which says so in `inputs`; else one."""
    declared = getattr(net, "inputs", None)
    return max(len(declared), 1) if isinstance(declared, tuple) else 1


def _as_loss(loss: Any) -> Any:
    """A loss of PyTorch's as one of arrays; others as they are."""
    if not is_torch_loaded() or loss is None:
        return loss
    from gluongraph.torch.loss import Loss, is_torch

    return Loss(loss) if is_torch(loss) else loss


def _check_arguments(net: Any, loss: Any, trainer: Any, inputs: Any) -> None:
    """Raise errors at once that the first call of the step would raise."""
    wrong, help = "", "compile(net, loss, trainer), compile(function, trainer=trainer) or compile(net)"
    if is_torch_module(net):
        wrong, help = f"net is a torch.nn.Module ({type(net).__name__})", FROM_TORCH
    elif not callable(net) or isinstance(net, type):
        wrong = f"net is a Block or a function, not {net!r}"
    elif loss is not None and (not callable(loss) or isinstance(loss, type)):
        wrong = f"loss is a Loss or a function, not {loss!r}"
    elif trainer is not None and not isinstance(trainer, Trainer):
        wrong = f"trainer is a gluon.Trainer, not {trainer!r}"
        if is_of_torch(trainer):
            wrong = f"trainer is a gluon.Trainer, not an optimizer of PyTorch's ({type(trainer).__name__})"
            help = "compile(net, loss, gluon.Trainer.from_torch(optimizer))"
    elif not isinstance(inputs, int) or inputs < 1:
        wrong = f"inputs says how many arrays go to the net, at least one; not {inputs!r}"
    if wrong:
        raise TypeError(with_user_location(f"compile: {wrong}", help=help))


services.register("compile", compile)
