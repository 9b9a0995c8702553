"""The interface of a step to its checkpoint, and of one part of its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gluongraph.dtypes import dtype_name
from gluongraph.errors import FormatError, MXNetError, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.parameter import Parameter
from gluongraph.host.json_text import DEEPEST, depth_exceeds
from gluongraph.ir.graph import TensorType
from gluongraph.ndarray import NDArray
from gluongraph.runtime.checkpoint import Content
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.step import TrainStep

WEIGHTS, STATES, REST = "params", "optim", "extra"  # the groups of arrays, each a file
Groups = dict[str, dict[str, Array]]
Put = Callable[[], None]


class Training:
    """A step as its checkpoint sees it: its trainer, and its parameters by the names that they have in files.

    These are the structural ones ("0.weight") where the step was compiled from a block, and do not depend on how many
    blocks were made before; of parameters that no block is known to hold, their own.
    """

    def __init__(self, step: TrainStep):
        if step.trainer is None:
            help = "net.save_parameters(file) and net.load_parameters(file) keep the weights"
            raise MXNetError(
                with_user_location("this was compiled without a trainer, and has nothing to resume", help=help)
            )
        self.step, self.trainer = step, step.trainer
        self.parameters: dict[str, Parameter] = {}
        self.keys: dict[str, str] = {}  # the parameter's own key -> the one in files
        known = step.net._collect_params_with_prefix() if isinstance(step.net, Block) else {}
        for key, parameter in (*known.items(), *((p.key, p) for p in self.trainer.params)):
            if parameter.key not in self.keys:
                if key in self.parameters:
                    raise MXNetError(
                        with_user_location(
                            f"the trainer's parameter {key} has the name of another one's place in the net"
                        )
                    )
                self.keys[parameter.key], self.parameters[key] = key, parameter
        if not any(p.deferred for p in self.trainer.params):
            self.trainer.prepare()

    @property
    def communicator(self) -> Communicator:
        """The ranks that train together."""
        return self.trainer.communicator

    def key(self, replica: str) -> str:
        """The name in files of a replica: "0.weight@cpu(1)" of "dense0_weight@cpu(1)"."""
        if replica in self.keys:
            return self.keys[replica]
        name, at, context = replica.rpartition("@")
        return self.keys[name] + at + context

    def owner(self, key: str) -> str:
        """The parameter, by its name in files, of which this is a replica: "0.weight" of "0.weight@cpu(1)"."""
        return key if key in self.parameters else key.rpartition("@")[0] or key

    def replicas(self) -> dict[str, NDArray]:
        """The arrays of the trainer's parameters on all contexts, by their names in files."""
        names = (r for replicas in self.trainer.exchange.replicas.values() for r in replicas)
        return {self.key(name): self.trainer.replica(name) for name in names}

    def type(self, key: str, content: Content) -> TensorType:
        """The type of a parameter whose shape may only be known from what was saved."""
        return TensorType(content.groups[WEIGHTS][key].shape, dtype_name(self.parameters[key].dtype))


@dataclass(frozen=True)
class Part:
    """One kind of state.

    `take(training, groups)` puts arrays, live ones, among those of a group, and gives what JSON tells beside them; None
    where there is no such state. `put(training, content, told)` compares that with the training and raises FormatError
    where it does not fit; it changes nothing, but gives a function that does. These are called in the order of the
    table, once every part has fitted.
    """

    take: Callable[[Training, Groups], Any]
    put: Callable[[Training, Content, Any], Put]


def check_json(value: Any, where: str) -> None:
    """Raise a TypeError that names the first thing in a value that would not come back from JSON as it is."""
    if depth_exceeds(value, DEEPEST - 4):  # what lies around it in the file is nested as well
        raise TypeError(with_user_location(f"{where} is nested deeper than {DEEPEST - 4} levels, or contains itself"))
    _check_json(value, where)


def _check_json(value: Any, where: str) -> None:
    if value is None or type(value) in (bool, int, float, str):
        return
    if type(value) is list:
        for i, each in enumerate(value):
            _check_json(each, f"{where}[{i}]")
    elif type(value) is dict:
        for key, each in value.items():
            if type(key) is not str:
                raise TypeError(
                    with_user_location(f"{where} has the key {key!r}; in JSON keys are texts", help="use str(key)")
                )
            _check_json(each, f"{where}[{key!r}]")
    else:
        help = "give dictionaries, lists, numbers, texts, True, False, None: float(x), x.tolist(), list(x)"
        raise TypeError(with_user_location(f"{where} is {type(value).__name__}, which JSON does not hold", help=help))


def misfit(message: str, help: str = "") -> FormatError:
    way = "build net, trainer and step as the saved ones were"
    alone = f"net.load_parameters(dir + '/{WEIGHTS}-00000-of-00001.safetensors') takes the weights alone"
    return FormatError(with_user_location(f"{message}; nothing has been changed", help=f"{help or way}; {alone}"))
