"""The parameters and buffers of a module of PyTorch's as a block, and the programs that run over them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from gluongraph import random
from gluongraph.context import cpu
from gluongraph.dtypes import DTYPES, is_float
from gluongraph.eager.tape import STATE
from gluongraph.errors import DTypeError, NameNotFoundError, ShapeError, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.ir.graph import Node
from gluongraph.ndarray import NDArray, OwnedBuilder, invoke
from gluongraph.storage import Array, given_array
from gluongraph.torch import export
from gluongraph.torch.build import Building
from gluongraph.torch.parameters import remember
from gluongraph.torch.program import Program
from gluongraph.torch.tensors import FromTensor, SharedStorage, array_in, dtype_of, is_tensor, to_numpy, to_torch
from gluongraph.tracing.tracer import guard


class ModuleBlock(HybridBlock):
    """A block with the parameters and buffers of a module, under their names in `module.state_dict()`.

    A subclass says in `_program(key)` which programs run over them, and `_run_program` runs one. With `share` the
    module's own tensors are the memory of the parameters.

    Raises:
        ExportError: the module holds tensors that do not exist here.
    """

    def __init__(self, module: Any, share: bool):
        super().__init__(prefix="", params=ParameterDict(""))
        self._module, self._share = module, share
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        export.check_tensors(dict(named))
        export.check_memory(dict(named))
        first: dict[int, str] = {}
        self._canonical = {name: first.setdefault(id(tensor), name) for name, tensor in named}
        self._trained = frozenset(first[id(p)] for p in module.parameters())
        self._tensors = {self._canonical[name]: tensor for name, tensor in named}
        self._dtypes = {name: dtype_of(tensor) for name, tensor in self._tensors.items()}
        self._constants: dict[str, Array] = {}
        self._version = 0  # of the constants
        self._numbers: dict[str, NDArray] = {}  # arrays of shape () that programs read as further states
        self._builder = OwnedBuilder(self._build)

    def _hold(self, moved: Collection[str]) -> None:
        """Make parameters and states of the tensors, and constants of those that are neither: no parameters, not among
        `moved`, and no arrays of floats that the module saves."""
        saved = self._module.state_dict(keep_vars=True)
        for name, tensor in self._tensors.items():
            held = name in saved and is_float(dtype_of(tensor)) and tensor.dim() > 0
            if name in self._trained or name in moved or held:
                self._add(name, tensor, name in self._trained)
            else:
                self._constants[name] = to_numpy(tensor).copy()
        self._tensors = {}

    def _add(self, name: str, tensor: Any, trained: bool) -> None:
        """A parameter, or a state that is none, with the values of a tensor."""
        parameter = self.params.get(
            name,
            shape=tuple(tensor.shape),
            dtype=DTYPES[dtype_of(tensor)].long,
            init=FromTensor(tensor),
            grad_req="write" if trained and tensor.requires_grad else "null",
            differentiable=trained,
        )
        storage = SharedStorage(tensor) if self._share else None
        parameter._adopt([NDArray(to_numpy(tensor).copy()) if storage is None else array_in(storage)])
        self._reg_params[name] = parameter
        if trained:
            remember(tensor, parameter)

    # -- running

    def _program(self, key: Hashable) -> Program:
        """The program of that key."""
        raise NotImplementedError

    def _run_program(self, key: Hashable, args: Sequence[Any]) -> Any:
        """The results of a program for arrays, in the order of its inputs."""
        program = self._program(key)
        guard(self, "_version")
        arrays = self._checked(program, args)
        ctx = arrays[0].context if arrays else cpu()
        sources = [random.source(ctx) for _ in range(program.draws)]
        made = invoke(
            self._builder,
            *arrays,
            *(p.data() for p in self._reg_params.values()),
            *self._numbers.values(),
            *(state for state, _ in sources),
            numbers=tuple(number for _, number in sources),
            key=key,
            wide=self._wide(),
            version=self._version,
        )
        results = made if isinstance(made, list) else [made]
        count = len(results) - len(program.moved)
        self._move(dict(zip(program.moved.values(), results[count:], strict=True)))
        return program.restore(results[:count])

    @property
    def _what(self) -> str:
        return type(self._module).__name__

    def _build(
        self, *nodes: Node, numbers: tuple[int, ...], key: Hashable, wide: Any, version: int
    ) -> tuple[Node, ...]:
        """A program as a builder: its results that are arrays, and what its states become."""
        program = self._program(key)
        names = (*self._reg_params, *self._numbers)
        inputs, held = len(program.inputs), len(names)
        sources = list(zip(nodes[inputs + held :], numbers, strict=True))[::-1]
        state: dict[str, Any] = dict(zip(names, nodes[inputs : inputs + held], strict=True))
        building = Building(program, wide, sources)
        state |= {name: building.constant(array) for name, array in self._constants.items()}
        results, moved = building.run(nodes[:inputs], state)
        return (*results, *moved.values())

    def _move(self, states: Mapping[str, NDArray]) -> None:
        """Write states that the module moves, outside of any record."""
        before, STATE.recording = STATE.recording, False
        try:
            for name, value in states.items():
                self._reg_params[name].data()[:] = value
        finally:
            STATE.recording = before

    def _wide(self) -> tuple[str, str] | None:
        """The module's float type, and that which its parameters have been cast to."""
        for name, parameter in self._reg_params.items():
            was = self._dtypes[name]  # before any cast
            if is_float(was) and was != parameter.data().type.dtype:
                return was, parameter.data().type.dtype
        return None

    # -- arguments

    def _checked(self, program: Program, given: Sequence[Any]) -> list[NDArray]:
        """The arguments as arrays of the program's types.

        Raises:
            DTypeError: integers where it takes floats, or the reverse.
            ShapeError: other shapes than the program takes.
        """
        wide = self._wide()
        arrays = []
        for input, value in zip(program.inputs, given, strict=True):
            dtype = wide[1] if wide and input.dtype == wide[0] else input.dtype
            arrays.append(self._one(str(input), dtype, value))
        program.bind([(a.type.dtype, a.shape) for a in arrays], self._what)
        return arrays

    def _one(self, input: str, dtype: str, array: NDArray) -> NDArray:
        given, wanted = (DTYPES[name].family == "float" for name in (array.type.dtype, dtype))
        # Gluon's labels are floats, which an integer type may hold; the reverse is a mistake, and so is a float mask.
        if given != wanted and (wanted or dtype == "bool"):
            help = f"x.astype({DTYPES[dtype].long!r})"
            raise DTypeError(with_user_location(f"{self._what}: input {input} cannot be {array.type}", help=help))
        return array if array.type.dtype == dtype else array.astype(DTYPES[dtype].long)

    # -- weights

    def state_dict(self) -> dict[str, Any]:
        """Copies of parameters and buffers as PyTorch's tensors, under the names of the module's `state_dict()`.

        As there, `_metadata` has the versions of the module's parts, which some of them ask for when they are loaded.

        >>> import torch
        >>> import gluongraph as mx
        >>> model = torch.nn.Linear(3, 2)
        >>> net = mx.from_torch(model, (torch.zeros(4, 3),))
        >>> model.load_state_dict(net.state_dict())
        <All keys matched successfully>
        """
        found: dict[str, Any] = self._module.state_dict()
        for name in found:
            own = self._canonical[name]
            array = self._constants[own] if own in self._constants else self._reg_params[own].data().asnumpy()
            found[name] = to_torch(array.copy()).reshape(array.shape)
        return found

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Take parameters and buffers from tensors (or arrays) by the names of the module's `state_dict()`.

        Raises:
            NameNotFoundError: with `strict`, names are missing, or there are others.
            ShapeError: an array has another shape. Nothing has been changed then.

        >>> import torch
        >>> import gluongraph as mx
        >>> model = torch.nn.Linear(3, 2)
        >>> net = mx.from_torch(model, (torch.zeros(4, 3),))
        >>> net.load_state_dict(model.state_dict())
        """
        known = list(self._module.state_dict(keep_vars=True))
        missing, others = [n for n in known if n not in state], [n for n in state if n not in known]
        if strict and (missing or others):
            wrong = (("missing", missing), ("unknown", others))
            message = "; ".join(f"{what}: {', '.join(names[:5])}" for what, names in wrong if names)
            help = "strict=False takes what is there"
            raise NameNotFoundError(with_user_location(f"load_state_dict of {self._what}: {message}", help=help))
        new = {name: elements(value) for name, value in state.items() if name in known}
        for name, array in new.items():
            own = self._canonical[name]
            have = self._constants[own].shape if own in self._constants else self._reg_params[own].shape
            if array.shape != have:
                raise ShapeError(with_user_location(f"load_state_dict: {name!r} has shape {array.shape}, not {have}"))
        for name, array in new.items():
            own = self._canonical[name]
            if own in self._constants:
                if (self._constants[own] != array).any():
                    self._constants[own] = array.astype(self._constants[own].dtype)
                    self._version += 1
            else:
                self._reg_params[own].data()[:] = NDArray(array.astype(self._reg_params[own].data().dtype))


def elements(value: Any) -> Array:
    """A tensor, an NDArray, or what numpy makes an array of, as an array."""
    return to_numpy(value) if is_tensor(value) else given_array(value)
