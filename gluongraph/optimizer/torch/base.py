"""What PyTorch's optimizers share: its names of arguments, and what its state dictionaries hold of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from gluongraph.formulas import number
from gluongraph.ir.graph import Node
from gluongraph.optimizer.base import Nodes, Optimizer
from gluongraph.optimizer.counting import Index

_Class = TypeVar("_Class", bound="type[TorchRule]")


class TorchRule(Optimizer):
    """A formula of torch.optim, with its arguments and defaults. Others are those of every optimizer: lr_scheduler,
    clip_gradient, multi_precision, ...; `learning_rate` and `wd` are other names of lr and weight_decay. States have
    the names that they have in torch's `state_dict()`.

    * `options`: option of torch's parameter groups -> the attributes that hold it, numbers;
    * `flags`: options that the formula branches on, attributes of the same names;
    * `steps`: does torch keep the number of updates with the states, as "step"?

    r is `rescale_grad`, C the clipping; `maximize` turns the sign of the gradient.

    >>> from gluongraph.optimizer.torch.base import TorchRule
    >>> from gluongraph import optimizer
    >>> issubclass(optimizer.torch.Adam, TorchRule), optimizer.torch.Adam().option("betas")
    (True, (0.9, 0.999))

    Raises:
        ValueError: a number is out of its range, as in torch.
    """

    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"lr": ("lr",), "weight_decay": ("wd",)}
    flags: ClassVar[tuple[str, ...]] = ("maximize",)
    steps: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        numbers = {name for names in cls.options.values() for name in names}
        cls.numbers = {**cls.numbers, **dict.fromkeys(numbers, False)}

    def __init__(self, lr: float | None, weight_decay: float = 0.0, maximize: bool = False, **kwargs: Any):
        own = {"learning_rate": lr, "wd": weight_decay}
        super().__init__(**{**own, **{name: value for name, value in kwargs.items() if value is not None}})
        self.maximize = maximize

    def _decays(self, name: str) -> bool:
        return True

    def structure(self) -> tuple[Any, ...]:
        return (*super().structure(), *(getattr(self, flag) for flag in self.flags))

    def scalars(self, index: Index) -> dict[str, float]:
        numbers = super().scalars(index)
        sign = -1.0 if self.maximize else 1.0
        return {**numbers, "rescale": sign * numbers["rescale"], "keep": 1.0 - numbers["lr"] * numbers["wd"]}

    def first(self, index: Index) -> float:
        """1 at the first update of a parameter, 0 later.

        >>> from gluongraph import optimizer
        >>> rule = optimizer.torch.SGD()
        >>> rule.count((0,))
        >>> rule.first(0)
        1.0
        """
        return number(self.t(index) == self.begin_num_update + 1)

    def decayed(self, w: Node, g: Node, s: Nodes, decoupled: bool = False) -> tuple[Node, Node]:
        """(w, g) of the formula: the gradient with wd w added; or the weight times 1 - lr wd, where that is apart."""
        g = self.clip(g * s["rescale"], s)
        return (w * s["keep"], g) if decoupled else (w, g + s["wd"] * w)

    # -- as torch's param_groups and state_dict() have it

    def option(self, name: str) -> Any:
        """The value of an option of torch's parameter groups.

        >>> from gluongraph import optimizer
        >>> optimizer.torch.AdamW(lr=0.5).option("weight_decay")
        0.01
        """
        if name in self.flags:
            return getattr(self, name)
        values = tuple(getattr(self, attribute) for attribute in self.options[name])
        return values[0] if len(values) == 1 else values

    def set_option(self, name: str, value: Any) -> None:
        """Set an option of torch's parameter groups; numbers may be tensors of one element.

        >>> from gluongraph import optimizer
        >>> adam = optimizer.torch.Adam()
        >>> adam.set_option("betas", (0.5, 0.25))
        >>> adam.beta1, adam.beta2
        (0.5, 0.25)

        Raises:
            ValueError: a number is out of its range.
        """
        if name in self.flags:
            setattr(self, name, value)
            return
        attributes = self.options[name]
        for attribute, each in zip(attributes, (value,) if len(attributes) == 1 else value, strict=True):
            setattr(self, attribute, float(each))

    def counted(self, index: Index) -> dict[str, float]:
        """The numbers that torch keeps of this parameter beside the states: they follow from the count of updates.

        >>> from gluongraph import optimizer
        >>> adam = optimizer.torch.Adam()
        >>> adam.count((0,))
        >>> adam.counted(0), optimizer.torch.SGD().counted(0)
        ({'step': 1.0}, {})
        """
        return {"step": float(self.t(index) - self.begin_num_update)} if self.steps else {}

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={self.option(name)}" for name in self.options if name != "lr")
        return f"torch.{type(self).__name__}(lr={self.learning_rate}, {told})"


def register(cls: _Class) -> _Class:
    """Class decorator: makes a rule known as "torch." and its name in lower case."""
    Optimizer.opt_registry[f"torch.{cls.__name__.lower()}"] = cls
    return cls


def averaging(**betas: float) -> dict[str, float]:
    """The scalars of running means: beta, and 1 - beta as new, with the same number.

    >>> from gluongraph.optimizer.torch.base import averaging
    >>> averaging(beta1=0.5, beta2=0.75)
    {'beta1': 0.5, 'new1': 0.5, 'beta2': 0.75, 'new2': 0.25}
    """
    return {key: value for name, beta in betas.items() for key, value in _pair(name, beta)}


def _pair(name: str, beta: float) -> tuple[tuple[str, float], tuple[str, float]]:
    return (name, beta), (name.replace("beta", "new"), 1.0 - beta)
