"""SymbolBlock: a model from a symbol file as a block, trainable again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph import nd
from gluongraph.context import Context
from gluongraph.errors import MXNetError, pluralize, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter import Parameter
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.shape_inference import parameter_shapes
from gluongraph.host.file_names import check_name
from gluongraph.ndarray import NDArray
from gluongraph.symbol import VARIABLE, Symbol, SymbolNode, load, write
from gluongraph.symbol.operators import apply, value, values

_DTYPES = {0: "float32", 1: "float64", 2: "float16", 3: "uint8", 4: "int32", 5: "int8", 6: "int64"}


class SymbolBlock(HybridBlock):
    """`outputs`, symbols of one graph, as a function of the variables `inputs`; all others are its parameters.

    Parameters keep the names of the graph; auxiliary states have no gradient.

    >>> from gluongraph.symbol import Symbol, SymbolNode, var
    >>> act = SymbolNode("Activation", "act", {"act_type": "relu"}, ((0, 0),))
    >>> block = SymbolBlock(Symbol([SymbolNode("null", "data"), act], [(1, 0)]), var("data"))
    >>> block(nd.array([-1, 2])).asnumpy().tolist()
    [0.0, 2.0]
    """

    def __init__(
        self, outputs: Symbol | Sequence[Symbol], inputs: Symbol | Sequence[Symbol], params: ParameterDict | None = None
    ):
        super().__init__(prefix="", params=ParameterDict("", params))
        self._symbol = outputs if isinstance(outputs, Symbol) else _joined(outputs)
        self._inputs = tuple(s.name for s in ([inputs] if isinstance(inputs, Symbol) else inputs))
        self._single = isinstance(outputs, Symbol) and len(outputs) == 1
        self._order = self._symbol.used()
        auxiliary = set(self._symbol.list_auxiliary_states())
        names = self._symbol.list_inputs()
        if missing := [n for n in self._inputs if n not in names]:
            raise ValueError(
                with_user_location(f"the graph has no input {', '.join(missing)}; its variables are {', '.join(names)}")
            )
        for number in self._order:
            node = self._symbol.nodes[number]
            if node.op == VARIABLE and node.name not in self._inputs:
                self._reg_params[node.name] = self._parameter(node, node.name in auxiliary)

    def _parameter(self, node: SymbolNode, auxiliary: bool) -> Parameter:
        about = {k: value(v) for k, v in node.attrs.items() if k.startswith("__")}
        return self.params.get(
            node.name,
            shape=about.get("__shape__"),
            dtype=_DTYPES.get(about.get("__dtype__", 0), "float32"),
            grad_req="null" if auxiliary else "write",
            lr_mult=float(about.get("__lr_mult__", 1.0)),
            wd_mult=float(about.get("__wd_mult__", 1.0)),
            init=about.get("__init__"),
            allow_deferred_init=True,
        )

    @staticmethod
    def imports(
        symbol_file: str,
        input_names: str | Sequence[str],
        param_file: str | None = None,
        ctx: Context | Sequence[Context] | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> SymbolBlock:
        """A model that MXNet or `HybridBlock.export` wrote: its symbol file, and its parameters by `param_file`.

        Raises:
            ArgumentError: the name of the file is empty.
            FormatError: the symbol file is none.
            ValueError: the graph has no input of that name.
            AssertionError: the parameters do not fit the graph.

        >>> import tempfile
        >>> from gluongraph import gluon, nd
        >>> net = gluon.nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> net.hybridize()
        >>> x = nd.ones((4, 3))
        >>> y = net(x)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     graph, parameters = net.export(folder + "/net")
        ...     block = gluon.SymbolBlock.imports(graph, "data", parameters)
        >>> bool(abs(block(x) - y).max() < 1e-6)
        True
        """
        for file in (symbol_file, param_file):
            check_name("imports", file, "SymbolBlock.imports('net-symbol.json', 'data', 'net-0000.params')")
        symbol = load(symbol_file)
        names = [input_names] if isinstance(input_names, str) else list(input_names)
        inputs = [Symbol([SymbolNode(VARIABLE, n)], [(0, 0)]) for n in names]
        block = SymbolBlock(symbol, inputs)
        if param_file is not None:
            block.load_parameters(param_file, ctx, allow_missing, ignore_extra, cast_dtype=True, dtype_source="saved")
        return block

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> tuple[str, str]:
        """Write the graph as it was read, and the parameters; see HybridBlock.export.

        >>> import os, tempfile
        >>> from gluongraph.symbol import Symbol, SymbolNode, var
        >>> act = SymbolNode("Activation", "act", {"act_type": "relu"}, ((0, 0),))
        >>> block = SymbolBlock(Symbol([SymbolNode("null", "data"), act], [(1, 0)]), var("data"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [os.path.basename(file) for file in block.export(folder + "/net")]
        ['net-symbol.json', 'net-0000.params']
        """
        return write(path, epoch, self._symbol, {n: p.averaged() for n, p in self._reg_params.items()})

    def infer_shape(self, *args: Any) -> None:
        """Nothing: shapes become known as the graph is run, operator by operator.

        >>> from gluongraph.symbol import Symbol, SymbolNode, var
        >>> act = SymbolNode("Activation", "act", {"act_type": "relu"}, ((0, 0),))
        >>> block = SymbolBlock(Symbol([SymbolNode("null", "data"), act], [(1, 0)]), var("data"))
        >>> block.infer_shape(nd.ones((2,)))
        """

    def _settle(self, args: tuple[Any, ...]) -> None:
        """Nothing, for the same reason."""

    def forward(self, *args: NDArray) -> Any:
        if len(args) != len(self._inputs):
            wanted = f"{len(self._inputs)}: {', '.join(self._inputs)}"
            raise MXNetError(with_user_location(f"{pluralize(len(args), 'input')} for a graph that takes {wanted}"))
        given = dict(zip(self._inputs, args, strict=True))
        made: dict[int, list[NDArray]] = {}
        for number in self._order:
            node = self._symbol.nodes[number]
            if node.op != VARIABLE:
                made[number] = apply(node.op, node.name, node.attrs, self._arguments(node, made))
            elif node.name in given:
                made[number] = [given[node.name]]
            elif not self._reg_params[node.name].deferred:
                made[number] = [self._reg_params[node.name].data()]
        found = [made[n][k] for n, k in self._symbol.heads]
        return found[0] if self._single else found

    def _arguments(self, node: SymbolNode, made: dict[int, list[NDArray]]) -> list[NDArray]:
        """The arrays that an operator reads; parameters that waited for its data's shape are finished."""
        first = made[node.inputs[0][0]][node.inputs[0][1]] if node.inputs else None
        waiting = [n for n, _ in node.inputs if n not in made]
        if waiting and first is not None:
            shapes = parameter_shapes(node.op, first.shape, values(node.attrs))
            for (number, _), shape in zip(node.inputs[1:], shapes, strict=False):
                if number in waiting:
                    parameter = self._reg_params[self._symbol.nodes[number].name]
                    parameter.shape = shape
                    parameter.finish_deferred_init()
                    made[number] = [parameter.data()]
        arrays = [made[n][k] for n, k in node.inputs]
        if node.op == "RNN" and first is not None:  # states of zeros, whose batch MXNet infers backwards
            arrays[2:] = [_of_batch(a, first.shape[1]) for a in arrays[2:]]
        return arrays


def _joined(symbols: Sequence[Symbol]) -> Symbol:
    from gluongraph.symbol import Group

    return Group(symbols)


def _of_batch(state: NDArray, batch: int) -> NDArray:
    return state if state.size else nd.zeros((state.shape[0], batch, state.shape[2]), state.context, state.dtype)
