"""States of updates between a Trainer and torch.optim. They have the same names; the count of updates is "step" there.

| optimizer | states | numbers |
| --- | --- | --- |
| SGD, Muon | momentum_buffer | |
| Adam, AdamW | exp_avg, exp_avg_sq, with amsgrad max_exp_avg_sq | step |
| NAdam | exp_avg, exp_avg_sq, mu_product | step |
| RAdam | exp_avg, exp_avg_sq | step |
| Adamax | exp_avg, exp_inf | step |
| Adagrad | sum | step |
| Adadelta | square_avg, acc_delta | step |
| RMSprop | square_avg, with momentum momentum_buffer, with centered grad_avg | step |
| ASGD | ax, eta | step; mu, which follows from it |
| Rprop | prev, step_size | step |

The table is that of `TorchRule.states` and `TorchRule.counted`. Float32 masters of 16-bit parameters are not in
torch's: what goes there is rounded by it to the dtype of its parameter, and a master after coming from there is the
weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import FormatError, MXNetError, with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.ndarray import NDArray
from gluongraph.optimizer.base import MASTER
from gluongraph.optimizer.torch.base import TorchRule

if TYPE_CHECKING:
    from gluongraph.gluon.trainer import Trainer


def torch() -> Any:
    """The package.

    Raises:
        MXNetError: it is not installed.
    """
    try:
        return import_whole("torch")
    except ModuleNotFoundError:
        message = "a state dictionary of PyTorch needs the package torch, which is not installed"
        raise MXNetError(with_user_location(message, help="pip install torch")) from None


def taken(trainer: Trainer) -> dict[int, dict[str, Any]]:
    """The states of parameters that have been updated, as tensors: index -> state of torch."""
    package, optimizer, whole = torch(), trainer.optimizer, trainer.whole_states()
    found: dict[int, dict[str, Any]] = {}
    for index in sorted(index for index in optimizer.counts() if isinstance(index, int)):
        rule = optimizer.member(index)
        assert isinstance(rule, TorchRule)
        arrays = {k: a.astype("float32") if a.type.dtype == "bf16" else a for k, a in _of(trainer, index, whole)}
        tensors = {
            k: package.from_numpy(a.asnumpy().reshape(a.type.shape).copy()) for k, a in arrays.items() if k != MASTER
        }
        numbers = {k: package.tensor(v, dtype=package.float32) for k, v in rule.counted(index).items()}
        if tensors or numbers:
            found[index] = {**numbers, **tensors}
    return found


def _of(trainer: Trainer, index: int, whole: Mapping[str, Any]) -> list[tuple[str, NDArray]]:
    """The states of a parameter by their names."""
    name = trainer.exchange.replicas[trainer.names[index]][0]
    return list(whole.get(name, {}).items())


def load(trainer: Trainer, told: Mapping[int, Mapping[str, Any]]) -> None:
    """Make these the states of the trainer's parameters: index -> state of torch. Others begin anew.

    Raises:
        FormatError: a state is missing, or of another shape; nothing is changed.
    """
    optimizer, states, counts = trainer.optimizer, dict[str, dict[str, NDArray]](), dict[int | str, int]()
    begin = optimizer.begin_num_update
    for index, state in told.items():
        rule = optimizer.member(index)
        assert isinstance(rule, TorchRule)
        made = int(_needed(trainer, index, "step", state)) if rule.steps else 1
        if not made:
            continue  # Adagrad's are there before the first update
        weight = trainer.params[index].list_data()[0]
        types = rule.state_types(weight.type)
        if not rule.steps and types and all(state.get(name) is None for name in types if name != MASTER):
            continue
        found = {name: _array(trainer, index, name, state, ty) for name, ty in types.items() if name != MASTER}
        if MASTER in types:
            found[MASTER] = weight.detach().astype("float32")
        states[trainer.names[index]] = found
        counts[index] = begin + made
    trainer.set_states({name: state for name, state in states.items() if state}, {})
    optimizer.restore_counts(counts, max(counts.values(), default=begin))


def _needed(trainer: Trainer, index: int, name: str, state: Mapping[str, Any]) -> Any:
    if (value := state.get(name)) is None:
        where = f"the state of {trainer.params[index].name}"
        message = f"{where} has {', '.join(sorted(state))}, and {trainer.optimizer.member(index)!r} needs {name}"
        raise FormatError(with_user_location(message, help="the options are not those of the optimizer that made it"))
    return value


def _array(trainer: Trainer, index: int, name: str, state: Mapping[str, Any], wanted: Any) -> NDArray:
    where = f"the state of {trainer.params[index].name}"
    tensor = _needed(trainer, index, name, state)
    array = tensor.detach().cpu().double().numpy()
    if array.shape != wanted.shape:
        raise FormatError(with_user_location(f"{where}: {name} is {array.shape}, and {wanted.shape} is wanted"))
    return NDArray(array.astype(numpy_dtype(wanted.dtype)))
