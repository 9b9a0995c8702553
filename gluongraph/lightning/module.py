"""LightningModule: a model with its steps for training, validation, test and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from gluongraph.errors import MXNetError, warn, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.host.file_names import check_name
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.hooks import DataHooks, ModelHooks
from gluongraph.lightning.hparams import HyperparametersMixin
from gluongraph.lightning.metric_objects import BatchValue, is_collection, is_metric, members_of, metrics_of
from gluongraph.lightning.metrics import Logged, reduction_of
from gluongraph.lightning.read_attributes import other_for_each_batch
from gluongraph.lightning.recording import current_recorder, not_loggable, told_to_recorder

if TYPE_CHECKING:
    from gluongraph.lightning.trainer import Trainer

    _Base = object
else:

    def _base() -> type:
        """torch.nn.Module where PyTorch is installed, since layers of PyTorch's are found by it; else object."""
        try:
            return import_whole("torch").nn.Module
        except ImportError:
            return object

    _Base = _base()

# Where values can be logged -> (may they be logged for steps?, for epochs?)
_STEP_HOOKS = (
    "training_step",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "optimizer_step",
    "optimizer_zero_grad",
    "lr_scheduler_step",
    "backward",
)
_EVALUATION_STEPS = tuple(
    name
    for kind in ("validation", "test")
    for name in (f"{kind}_step", f"on_{kind}_batch_start", f"on_{kind}_batch_end")
)
_EPOCH_HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    *(f"on_{kind}_{when}" for kind in ("validation", "test") for when in ("start", "epoch_start", "epoch_end")),
)


class LightningModule(ModelHooks, DataHooks, HyperparametersMixin, _Base):
    """A model and how it is trained: `training_step` gives the loss of a batch, `configure_optimizers` the optimizer.

    Layers are torch modules, or Gluon's blocks (not both). `training_step` is traced once for each structure and shape
    of its batch, by `torch.export` where the layers are PyTorch's, and compiled together with its gradients and the
    update. `self.log` within it is part of the program. Attributes that hooks change are followed: a float becomes an
    input of the program, and for others it is made anew. `batch_idx` and `global_step` have no value in it.

    >>> import gluongraph as mx
    >>> import gluongraph.lightning as L
    >>> from gluongraph import gluon, nd
    >>> class Model(L.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = gluon.nn.Dense(1, in_units=2)
    ...         self.net.initialize(mx.init.One())
    ...         self.loss = gluon.loss.L2Loss()
    ...     def training_step(self, batch, batch_idx):
    ...         x, y = batch
    ...         loss = self.loss(self.net(x), y).mean()
    ...         self.log("train_loss", loss)
    ...         return loss
    ...     def configure_optimizers(self):
    ...         return gluon.Trainer(self.collect_params(), "sgd", {"learning_rate": 0.1})
    >>> trainer = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    ...                     enable_model_summary=False)
    >>> trainer.fit(Model(), [(nd.ones((4, 2)), nd.zeros((4, 1)))])
    >>> round(float(trainer.callback_metrics["train_loss"]), 3)
    0.98
    """

    automatic_optimization = True
    strict_loading = True
    example_input_array: Any = None

    def __init__(self) -> None:
        super().__init__()
        self._trainer: Trainer | None = None
        self._current_fx: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle of it has: all but the Trainer, which holds loaders and files that are being read."""
        return {**vars(self), "_trainer": None}

    # -- what users write

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes; `predict_step` calls it."""
        message = f"{type(self).__name__}.forward is missing: predict_step calls the module on a batch"
        raise misconfigured(message, help="write forward(self, x), or predict_step")

    if TYPE_CHECKING:  # torch.nn.Module has these
        parameters: Callable[[], Iterator[Any]]
        modules: Callable[[], Iterator[Any]]
        train: Callable[[bool], Any]

    if TYPE_CHECKING or _Base is object:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """The result of `forward`."""
            return self.forward(*args, **kwargs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss of a batch: an array, or a dict with "loss" among other values; None leaves the batch out."""
        raise misconfigured(
            f"{type(self).__name__}.training_step is missing", help="def training_step(self, batch, batch_idx)"
        )

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """What is computed for a batch of the validation; logs what is to be known of it."""

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """What is computed for a batch of the test; logs what is to be known of it."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """What `Trainer.predict` gives for a batch; by default the module's result for it."""
        return self(batch)

    def configure_optimizers(self) -> Any:
        """The optimizer: of torch.optim, a `gluon.Trainer` or an optimizer of `mx.optimizer`; or a list of them, a pair
        of lists of optimizers and schedulers, or a dict with "optimizer", "lr_scheduler" and "monitor"."""
        raise misconfigured(f"{type(self).__name__}.configure_optimizers is missing")

    # -- where it is

    @property
    def trainer(self) -> Trainer:
        """The Trainer that runs it.

        Raises:
            RuntimeError: none does.
        """
        if self._trainer is None:
            raise RuntimeError(with_user_location(f"{type(self).__name__} is not attached to a `Trainer`."))
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | None) -> None:
        self._trainer = trainer

    @property
    def current_epoch(self) -> int:
        """The number of the epoch, from 0 on; 0 without a Trainer."""
        return 0 if self._trainer is None else self._trainer.current_epoch

    @other_for_each_batch
    def global_step(self) -> int:
        """How many updates have been made; 0 without a Trainer."""
        return 0 if self._trainer is None else self._trainer.global_step

    @property
    def global_rank(self) -> int:
        """The number of this rank among all of them."""
        return 0 if self._trainer is None else self._trainer.global_rank

    @property
    def local_rank(self) -> int:
        """The number of this rank on its host."""
        return 0 if self._trainer is None else self._trainer.local_rank

    @property
    def logger(self) -> Any:
        """The first logger of the Trainer; None without one."""
        return None if self._trainer is None else self._trainer.logger

    @property
    def loggers(self) -> list[Any]:
        """The loggers of the Trainer."""
        return [] if self._trainer is None else self._trainer.loggers

    @property
    def device(self) -> Any:
        """Where tensors of the module are: on the CPU, which is where batches are made."""
        return import_whole("torch").device("cpu") if _is_torch(self) else "cpu"

    @property
    def on_gpu(self) -> bool:
        """Are tensors of the module on a GPU? Compiled steps may run there, and bring arrays there by themselves."""
        return False

    @property
    def dtype(self) -> Any:
        """The element type of the first parameter."""
        if _is_torch(self):
            return next((p.dtype for p in self.parameters()), None)
        return next((p.dtype for p in self.collect_params().values()), None)

    # -- parameters of Gluon's blocks

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """The parameters of its Gluon blocks, as `Block.collect_params` gives them."""
        made = ParameterDict("")
        for block in blocks_of(self).values():
            made.update(block.collect_params(select))
        return made

    # -- logging

    @told_to_recorder
    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: Any = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value of this hook: for the step, the epoch (reduced by `reduce_fx`, a mean weighted by the number of
        samples), or both. In training_step it becomes an output of the compiled program.

        Args:
            value: a number, an array of one element, or a metric of torchmetrics that is an attribute of the module: it
                gives the values of the batch and of the epoch, and is reset when that ends.
            prog_bar: show it in the progress bar.
            logger: give it to the loggers; by default yes.
            on_step, on_epoch: by default for the step in the training's steps, else for the epoch.
            reduce_fx: "mean", "sum", "max" or "min".
            sync_dist: reduce over all ranks, when an epoch ends.
            batch_size: the number of samples, if it is not the first extent of the batch's first array; the step may
                compute it, as `mask.sum()`.
            enable_graph, sync_dist_group, metric_attribute: accepted, and without a meaning here.

        Raises:
            MisconfigurationException: not within a hook that can log; a value that is no number; a metric that is no
                attribute of the module.
        """
        if self._trainer is None:
            warn(f"self.log({name!r}, ...) without a Trainer does nothing")
            return
        logged = self._how_logged(
            name,
            prog_bar=prog_bar,
            logger=logger,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce_fx=reduce_fx,
            sync_dist=sync_dist,
            add_dataloader_idx=add_dataloader_idx,
            batch_size=batch_size,
            rank_zero_only=rank_zero_only,
        )
        if isinstance(value, Mapping) or is_collection(value):
            what = "a dict" if isinstance(value, Mapping) else "a collection of metrics"
            message = f"self.log({name!r}, ...): {what} was given; log has one value"
            raise misconfigured(message, help="self.log_dict(values)")
        if is_metric(value) and not any(value is each for each in metrics_of(self).values()):
            message = f"self.log({name!r}, ...): the {type(value).__name__} is no attribute of {type(self).__name__}"
            raise misconfigured(message, help="make it an attribute in __init__: self.accuracy = Accuracy(...)")
        recorder = current_recorder()
        if recorder is not None:
            recorder.log(logged, value)
        elif is_metric(value):
            self._trainer.metric_log.store.log_metric(logged, value)
        else:
            if batch_size is not None:
                logged = replace(logged, batch_size=_number("batch_size", batch_size))
            self._trainer.log_value(logged, _number(name, value))

    def _how_logged(
        self,
        name: str,
        *,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        sync_dist: bool = False,
        add_dataloader_idx: bool = True,
        batch_size: Any = None,
        rank_zero_only: bool = False,
        **unused: Any,
    ) -> Logged:
        """How a value of this hook is logged, by the arguments of `log`."""
        recorder = current_recorder()
        fx = recorder.fx if recorder is not None else self._current_fx
        if fx in _STEP_HOOKS:
            steps, default = True, (True, False)
        elif fx in _EVALUATION_STEPS:
            steps, default = True, (False, True)
        elif fx in _EPOCH_HOOKS:
            steps, default = False, (False, True)
        else:
            where = f"in {fx}" if fx else "outside of the hooks of a loop"
            message = f"self.log({name!r}, ...) {where}: there is nothing to reduce over"
            raise misconfigured(
                message, help="log in a step or an epoch's hook; self.logger.log_metrics({...}) writes at once"
            )
        step, epoch = default[0] if on_step is None else on_step, default[1] if on_epoch is None else on_epoch
        if step and not steps:
            raise misconfigured(f"self.log({name!r}, on_step=True) in {fx}", help="leave on_step out")
        if not (step or epoch):
            message = f"self.log({name!r}, on_step=False, on_epoch=False): nobody would see it"
            raise misconfigured(message, help="give one of them, or leave the call out")
        if not isinstance(name, str):
            raise misconfigured(f"self.log({name!r}, ...): the name is a text", help='self.log("loss", loss)')
        if "/dataloader_idx_" in name:
            message = f"self.log({name!r}, ...): the name holds the number of the loader, which is added by itself"
            raise misconfigured(message, help="add_dataloader_idx=True adds it")
        return Logged(
            fx=str(fx),
            name=name,
            prog_bar=prog_bar,
            logger=True if logger is None else logger,
            on_step=step,
            on_epoch=epoch,
            reduce_fx=reduction_of(reduce_fx),
            sync_dist=sync_dist,
            add_dataloader_idx=add_dataloader_idx,
            batch_size=batch_size,
            rank_zero_only=rank_zero_only,
            dataloader_idx=self.trainer.dataloader_idx,
        )

    @told_to_recorder
    def log_dict(
        self,
        dictionary: Mapping[str, Any],
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: Any = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log each value of a dict under its key, or each metric of a collection of torchmetrics, with the arguments of
        `log`."""
        how: dict[str, Any] = {
            "prog_bar": prog_bar,
            "logger": logger,
            "on_step": on_step,
            "on_epoch": on_epoch,
            "reduce_fx": reduce_fx,
            "sync_dist": sync_dist,
            "add_dataloader_idx": add_dataloader_idx,
            "batch_size": batch_size,
            "rank_zero_only": rank_zero_only,
        }
        recorder = current_recorder()
        if isinstance(dictionary, BatchValue) and recorder is not None and self._trainer is not None:
            recorder.log(
                self._how_logged("", **how), dictionary, whole=True
            )  # its names are known when the step has run
            return
        named = members_of(dictionary) if is_collection(dictionary) else dictionary
        if not isinstance(named, Mapping):
            message = f"self.log_dict(...): {type(named).__name__} is neither a dict nor a collection of metrics"
            raise misconfigured(message, help='self.log_dict({"loss": loss})')
        for name, value in named.items():
            self.log(name, value, **how)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first rank, above the progress bar."""
        if self._trainer is None:
            print(*args, **kwargs)
        else:
            self._trainer.print(*args, **kwargs)

    # -- optimizers

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer, or the list of them where there are several: for manual optimization."""
        made = self.trainer.manual_optimizers if use_pl_optimizer else self.trainer.optimizers
        return made[0] if len(made) == 1 else made

    def lr_schedulers(self) -> Any:
        """The scheduler, the list of them, or None: for manual optimization."""
        made = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        return None if not made else made[0] if len(made) == 1 else made

    def manual_backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients of a loss, with `automatic_optimization = False`."""
        if self.automatic_optimization:
            message = "manual_backward, with automatic optimization"
            raise misconfigured(message, help="self.automatic_optimization = False in __init__")
        self.trainer.backward(loss, *args, **kwargs)

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients of a loss; to override it is to train in the staged mode."""
        loss.backward(*args, **kwargs)

    @contextmanager
    def toggled_optimizer(self, optimizer: Any) -> Iterator[None]:
        """Within: parameters of other optimizers need no gradients."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Let parameters of other optimizers need no gradients, until `untoggle_optimizer`."""
        groups = {id(p) for group in optimizer.param_groups for p in group["params"]}
        others = [p for each in self.trainer.optimizers for g in each.param_groups for p in g["params"]]
        self._toggled = {id(p): (p, p.requires_grad) for p in others if id(p) not in groups}
        for parameter, _ in self._toggled.values():
            parameter.requires_grad = False

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Put back what `toggle_optimizer` changed."""
        for parameter, before in getattr(self, "_toggled", {}).values():
            parameter.requires_grad = before
        self._toggled = {}

    def clip_gradients(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip the gradients of an optimizer's parameters, by the Trainer's settings unless others are given."""
        self.trainer.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip gradients before an update; to override it is to train in the staged mode."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """One update; to override it is to train in the staged mode."""
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        """Forget gradients before those of the next batch; to override it is to train in the staged mode."""
        optimizer.zero_grad()

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Let a scheduler take its step; called at its interval."""
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def _set_mode(self, training: bool) -> None:
        if _is_torch(self):
            self.train(training)

    # -- ranks

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The arrays of all ranks, stacked along a new first axis; of one rank as they are. Numbers become arrays."""
        return self.trainer.all_gather(data)

    def freeze(self) -> Self:
        """Let no parameter be trained, and layers predict. Gives the module."""
        self._train_parameters(False)
        self._set_mode(False)
        return self

    def unfreeze(self) -> Self:
        """Let all parameters be trained. Gives the module."""
        self._train_parameters(True)
        self._set_mode(True)
        return self

    def _train_parameters(self, trained: bool) -> None:
        if _is_torch(self):
            for parameter in self.parameters():
                parameter.requires_grad = trained
        for parameter in self.collect_params().values():
            if parameter._differentiable:
                parameter.grad_req = "write" if trained else "null"

    def to_onnx(self, file_path: Any = None, input_sample: Any = None, **kwargs: Any) -> Any:
        """Write `forward` in prediction mode as an ONNX model, by `torch.onnx.export`, which gets `kwargs`; by default
        for `example_input_array`. Gives what torch.onnx.export gives.

        Raises:
            MisconfigurationException: the layers are Gluon's blocks, or there is no input.
        """
        if not _is_torch(self):
            help = "self.net.export_onnx(path, x) writes a block"
            raise misconfigured("to_onnx is there for layers of PyTorch's", help=help)
        sample = self.example_input_array if input_sample is None else input_sample
        if sample is None:
            help = "model.to_onnx(path, x), or self.example_input_array = x in __init__"
            raise misconfigured("to_onnx has no input to trace the module with", help=help)
        torch = import_whole("torch")
        modes = [(each, each.training) for each in self.modules()]
        self._set_mode(False)
        try:
            with torch.no_grad():
                return torch.onnx.export(self, sample, file_path, **kwargs)
        finally:
            for each, training in modes:
                each.training = training

    def to_torchscript(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: TorchScript is deprecated, in PyTorch and in Lightning."""
        help = "torch.export.export(model.eval(), (x,)), or model.to_onnx(path, x)"
        raise misconfigured("to_torchscript is not there, since PyTorch gives TorchScript up", help=help)

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """The module of a checkpoint: made with the hyperparameters saved there and `kwargs`, with its weights.

        `hparams_file`, the hparams.yaml of a logger, has the hyperparameters in place of those of the checkpoint.

        Raises:
            FileNotFoundError, FormatError: there is none, or it is damaged.
            TypeError: `__init__` needs arguments that were not saved.
        """
        check_name(
            "load_from_checkpoint", hparams_file, "Model.load_from_checkpoint(path, hparams_file='hparams.yaml')"
        )
        import_whole("gluongraph.lightning.checkpoints")
        from gluongraph.lightning.checkpoints import module_from_checkpoint

        return module_from_checkpoint(cls, checkpoint_path, hparams_file, self_strict(cls, strict), kwargs)


def blocks_of(module: Any) -> dict[str, Block]:
    """The Gluon blocks among the attributes of a module, by name. No method: `self.blocks` is a user's own name.

    Raises:
        MisconfigurationException: a block lies in a list or dict, where it would not be found in a checkpoint.
    """
    found = {name: value for name, value in vars(module).items() if isinstance(value, Block)}
    for name, value in vars(module).items():
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        if name not in ("_modules",) and any(isinstance(each, Block) for each in parts):
            message = f"self.{name} holds Gluon blocks in a {type(value).__name__}"
            raise misconfigured(message, help="make each an attribute, or put them into gluon.nn.Sequential")
    return found


def self_strict(cls: type[LightningModule], strict: bool | None) -> bool:
    """Must all weights be there?"""
    return cls.strict_loading if strict is None else strict


def _number(name: str, value: Any) -> float:
    """A value as a number."""
    try:
        value = value.detach() if hasattr(value, "detach") else value
        return float(value.asscalar() if hasattr(value, "asscalar") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, MXNetError) and not isinstance(error, ValueError):  # what the value was computed by failed
            raise
        raise not_loggable(name, value) from None


def _is_torch(module: Any) -> bool:
    """Are the module's layers PyTorch's?"""
    return _Base is not object and next(iter(module.parameters()), None) is not None
