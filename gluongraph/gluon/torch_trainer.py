"""What a Trainer asks where its optimizer is one of torch.optim; `gluongraph.torch` is imported only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.block import Block

if TYPE_CHECKING:
    from gluongraph.gluon.trainer import Trainer
    from gluongraph.torch.optimizers import TorchOptimizers


def is_of_torch(optimizer: Any) -> bool:
    """Is it an optimizer of torch.optim, or a list of them? torch is not imported to tell that."""
    each = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)
    bases = [[(c.__module__, c.__name__) for c in type(one).__mro__] for one in each]
    return bool(bases) and all(("torch.optim.optimizer", "Optimizer") in names for names in bases)


def taken_over(optimizer: Any, params: Any, arguments: Mapping[str, Any] | None) -> TorchOptimizers | None:
    """The optimizer of torch with its parameters, which `params`, a net or a list, hold unless it is None; None where
    it is no such optimizer."""
    if not is_of_torch(optimizer):
        return None
    from gluongraph.torch.optimizers import TorchOptimizers

    if arguments and arguments.keys() - {"multi_precision"}:
        message = f"optimizer_params beside an optimizer of torch: {', '.join(arguments)}"
        raise AssertionError(with_user_location(message, help="its parameter groups have its options"))
    params = params.collect_params() if isinstance(params, Block) else params
    listed = list(params.values()) if hasattr(params, "values") else params
    return TorchOptimizers(optimizer, listed, **(arguments or {}))


def why_unknown(optimizer: Any) -> str | None:
    """Why this optimizer of torch.optim cannot be taken over, with its name; None where its formula is known."""
    from gluongraph.torch import optimizers

    return optimizers.why_unknown(optimizer)


def can_take_over(optimizers: Sequence[Any]) -> bool:
    """Are the formulas of these optimizers of torch.optim known, and their tensors parameters here, each of one of
    them?"""
    from gluongraph.torch.parameters import parameter_of

    tensors = [p for each in optimizers for group in each.param_groups for p in group["params"]]
    apart = len({id(tensor) for tensor in tensors}) == len(tensors)
    known = all(why_unknown(each) is None for each in optimizers)
    return known and apart and all(parameter_of(tensor) is not None for tensor in tensors)


def state_dict_of(trainer: Trainer, torch: TorchOptimizers | None) -> Any:
    """See `Trainer.torch_state_dict`."""
    from gluongraph.torch import optimizers

    trainer.prepare()
    if torch is None:
        return optimizers.state_dict_of(trainer)
    made = torch.state_dicts(trainer)
    return made[0] if len(made) == 1 else made


def load_state_dict(trainer: Trainer, torch: TorchOptimizers | None, state_dict: Any) -> None:
    """See `Trainer.load_torch_state_dict`."""
    if torch is None:
        message = "the Trainer was not made of an optimizer of torch, and has none of its parameter groups"
        raise MXNetError(with_user_location(message, help="gluon.Trainer.from_torch(optimizer)"))
    torch.load_state_dicts(trainer, state_dict if isinstance(state_dict, (list, tuple)) else [state_dict])


def take_states(trainer: Trainer) -> None:
    """Make the states that the optimizers of torch hold, which have made updates themselves, those of the trainer."""
    trainer.prepare()
    if trainer._torch is not None:
        trainer._torch.load_states(trainer, trainer._torch.states_of_now())
