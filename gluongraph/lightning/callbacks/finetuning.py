"""Training parts of a model first and others later: frozen layers, which are unfrozen as epochs go by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.callbacks.callback import Callback
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.utilities.rank_zero import rank_zero_info, rank_zero_warn


def multiplicative(epoch: int) -> float:
    """The factor by which BackboneFinetuning multiplies the rate of the backbone in each epoch.

    >>> multiplicative(3)
    2.0
    """
    return 2.0


class BaseFinetuning(Callback):
    """Freeze modules of PyTorch's before the training, and unfreeze them later: override `freeze_before_training` and
    `finetune_function`.

    Frozen parameters belong to no parameter group: `configure_optimizers` gives the optimizer those that have
    `requires_grad`. What is unfrozen is added as a group. The compiled step is made anew then.

    >>> class AfterTwo(BaseFinetuning):
    ...     def freeze_before_training(self, pl_module):
    ...         self.freeze(pl_module.backbone)
    ...     def finetune_function(self, pl_module, epoch, optimizer):
    ...         if epoch == 2:
    ...             self.unfreeze_and_add_param_group(pl_module.backbone, optimizer)
    >>> AfterTwo().state_dict()
    {'groups': []}
    """

    def __init__(self) -> None:
        self._groups: list[list[list[str]]] = []  # optimizer -> group -> names of the parameters that were added
        self._loaded: list[list[list[str]]] | None = None

    # -- what users write

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze what is not to be trained at first."""
        message = f"{type(self).__name__}.freeze_before_training is missing"
        help = "def freeze_before_training(self, pl_module): self.freeze(pl_module.backbone)"
        raise misconfigured(message, help=help)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        """Unfreeze what is to be trained from this epoch on; called at the beginning of each, for each optimizer."""
        message = f"{type(self).__name__}.finetune_function is missing"
        raise misconfigured(message, help="def finetune_function(self, pl_module, epoch, optimizer): ...")

    # -- modules and parameters

    @staticmethod
    def flatten_modules(modules: Any) -> list[Any]:
        """The modules within a module, or within those of a list, that have no parts, and those that have parameters of
        their own beside parts."""
        nn = import_whole("torch").nn
        if isinstance(modules, nn.ModuleDict):
            modules = modules.values()
        if isinstance(modules, Iterable) and not isinstance(modules, nn.Module):
            found = [each for part in modules for each in BaseFinetuning.flatten_modules(part)]
        else:
            found = list(modules.modules())
        return [m for m in found if not list(m.children()) or m._parameters]

    @staticmethod
    def filter_params(modules: Any, train_bn: bool = True, requires_grad: bool = True) -> Iterator[Any]:
        """The parameters in modules that are trained, or with `requires_grad=False` those that are not; without
        `train_bn` none of BatchNorm layers."""
        for module in BaseFinetuning.flatten_modules(modules):
            if train_bn or not _is_batch_norm(module):
                for parameter in module.parameters(recurse=False):
                    if parameter.requires_grad == requires_grad:
                        yield parameter

    @staticmethod
    def make_trainable(modules: Any) -> None:
        """Unfreeze the parameters in modules."""
        for module in BaseFinetuning.flatten_modules(modules):
            if _is_batch_norm(module):
                module.track_running_stats = True
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad = True

    @staticmethod
    def freeze_module(module: Any) -> None:
        """Freeze the parameters that a module has itself, and the statistics of a BatchNorm layer."""
        if _is_batch_norm(module):
            module.track_running_stats = False
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad = False

    @staticmethod
    def freeze(modules: Any, train_bn: bool = True) -> None:
        """Freeze the parameters in modules; with `train_bn` not those of BatchNorm layers."""
        for module in BaseFinetuning.flatten_modules(modules):
            if _is_batch_norm(module) and train_bn:
                BaseFinetuning.make_trainable(module)
            else:
                BaseFinetuning.freeze_module(module)

    @staticmethod
    def filter_on_optimizer(optimizer: Any, params: Iterable[Any]) -> list[Any]:
        """Those of the parameters that the optimizer does not have yet; of the others is warned."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        params = list(params)
        if known := sum(id(p) in held for p in params):
            rank_zero_warn(
                f"{known} of the parameters that are unfrozen belong to a group of the optimizer already, and are not"
                " added: configure_optimizers is to give it those with requires_grad"
            )
        return [p for p in params if id(p) not in held]

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: Any, optimizer: Any, lr: float | None = None, initial_denom_lr: float = 10.0, train_bn: bool = True
    ) -> None:
        """Unfreeze modules, and add their parameters to the optimizer as a group.

        Its rate is `lr`, or that of the first group divided by `initial_denom_lr`.
        """
        BaseFinetuning.make_trainable(modules)
        rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else float(lr)
        found = BaseFinetuning.filter_params(modules, train_bn=train_bn, requires_grad=True)
        if params := BaseFinetuning.filter_on_optimizer(optimizer, found):
            optimizer.add_param_group({"params": params, "lr": rate})

    # -- hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Freeze before the optimizer is made."""
        if stage == "fit":
            self.freeze_before_training(pl_module)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Add the groups again that had been added when the checkpoint was saved."""
        if self._loaded is None:
            return
        parameters = dict(pl_module.named_parameters())
        for optimizer, groups in zip(trainer.optimizers, self._loaded, strict=True):
            for names in groups:
                for name in names:
                    parameters[name].requires_grad = True
                optimizer.add_param_group({"params": [parameters[name] for name in names]})
        self._groups, self._loaded = self._loaded, None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Let `finetune_function` unfreeze, and note what it has added."""
        names = {id(p): name for name, p in pl_module.named_parameters()}
        self._groups = self._groups or [[] for _ in trainer.optimizers]
        for optimizer, groups in zip(trainer.optimizers, self._groups, strict=True):
            before = len(optimizer.param_groups)
            self.finetune_function(pl_module, trainer.current_epoch, optimizer)
            groups += [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups[before:]]

    def state_dict(self) -> dict[str, Any]:
        """The names of the parameters in the groups that were added."""
        return {"groups": self._groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Add these groups when the training begins."""
        self._loaded = state_dict["groups"]


def _is_batch_norm(module: Any) -> bool:
    return isinstance(module, import_whole("torch").nn.modules.batchnorm._BatchNorm)


class BackboneFinetuning(BaseFinetuning):
    """Freeze `pl_module.backbone`, and train it from an epoch on, with a rate that grows to that of the rest.

    Its rate begins as `backbone_initial_lr`, or that of the first group times `backbone_initial_ratio_lr`, and is
    multiplied by `lambda_func(epoch)` in each epoch after, as long as it is below that of the first group, which it has
    from then on where `should_align`.

    >>> BackboneFinetuning(unfreeze_backbone_at_epoch=5).unfreeze_backbone_at_epoch
    5

    Raises:
        MisconfigurationException: when the training begins, the module has no `backbone`.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float = 10e-2,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ):
        super().__init__()
        self.unfreeze_backbone_at_epoch, self.lambda_func = unfreeze_backbone_at_epoch, lambda_func
        self.backbone_initial_ratio_lr, self.backbone_initial_lr = backbone_initial_ratio_lr, backbone_initial_lr
        self.should_align, self.initial_denom_lr = should_align, initial_denom_lr
        self.train_bn, self.verbose, self.rounding = train_bn, verbose, rounding
        self.previous_backbone_lr: float | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse a module that has no backbone."""
        if not isinstance(getattr(pl_module, "backbone", None), import_whole("torch").nn.Module):
            message = f"BackboneFinetuning: {type(pl_module).__name__} has no `backbone` that is a torch.nn.Module"
            raise misconfigured(message, help="call it self.backbone, or derive a callback from BaseFinetuning")
        super().on_fit_start(trainer, pl_module)

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze the backbone."""
        self.freeze(getattr(pl_module, "backbone", []))

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        """Unfreeze the backbone at its epoch, and raise its rate in those after it."""
        if epoch < self.unfreeze_backbone_at_epoch:
            return
        current = optimizer.param_groups[0]["lr"]
        if epoch == self.unfreeze_backbone_at_epoch:
            rate = self.backbone_initial_lr
            rate = current * self.backbone_initial_ratio_lr if rate is None else rate
            self.unfreeze_and_add_param_group(
                pl_module.backbone, optimizer, rate, self.initial_denom_lr, train_bn=self.train_bn
            )
        else:
            rate = self.previous_backbone_lr or 0.0
            grown = self.lambda_func(epoch + 1) * rate
            rate = current if self.should_align and grown > current else grown
            optimizer.param_groups[-1]["lr"] = rate
        self.previous_backbone_lr = rate
        if self.verbose:
            rank_zero_info(f"rates: {round(current, self.rounding)}, of the backbone {round(rate, self.rounding)}")

    def state_dict(self) -> dict[str, Any]:
        """The groups that were added, and the rate of the backbone."""
        return {**super().state_dict(), "previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` has given."""
        super().load_state_dict(state_dict)
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]
