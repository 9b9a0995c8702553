"""Cells on top of each other, and in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gluongraph import nd
from gluongraph.errors import ShapeError, with_user_location
from gluongraph.gluon.block import Block, _indented
from gluongraph.gluon.rnn.recurrent import (
    HybridRecurrentCell,
    RecurrentCell,
    Sequences,
    States,
    begun,
    given_back,
    merged,
)
from gluongraph.mxops.index import SequenceReverse
from gluongraph.ndarray import NDArray, invoke


class _Several(RecurrentCell):
    """A cell made of cells, whose states follow one another."""

    def _cells(self) -> list[RecurrentCell]:
        cells: Iterable[Any] = self._children.values()  # blocks, of which `add` takes cells only
        return list(cells)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [info for cell in self._cells() for info in cell.state_info(batch_size)]

    def begin_state(self, batch_size: int = 0, func: Callable[..., NDArray] = nd.zeros, **kwargs: Any) -> States:
        """The begin states of all cells."""
        self._check_unmodified()
        return [s for cell in self._cells() for s in cell.begin_state(batch_size=batch_size, func=func, **kwargs)]


class _Stack(_Several):
    """What both stacks share: each cell's output is the next one's input."""

    def add(self, cell: RecurrentCell) -> None:
        """Put a cell on top."""
        self.register_child(cell)

    def forward(self, inputs: Any, states: Any) -> Any:
        after: States = []
        for cell, own in self._with_states(states):
            inputs, own = cell(inputs, own)
            after += own
        return inputs, after

    def _with_states(self, states: Sequence[NDArray]) -> Iterator[tuple[RecurrentCell, States]]:
        counts = [len(cell.state_info()) for cell in self._cells()]
        if sum(counts) != len(states):
            raise ShapeError(
                with_user_location(f"{type(self).__name__} {self.name!r} has {sum(counts)} states, not {len(states)}")
            )
        rest = list(states)
        for cell, count in zip(self._cells(), counts, strict=True):
            yield cell, rest[:count]
            rest = rest[count:]

    def unroll(
        self,
        length: int,
        inputs: Sequences,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: NDArray | None = None,
    ) -> tuple[Sequences, States]:
        """As `RecurrentCell.unroll`, cell by cell: each runs over the whole sequence."""
        self.reset()
        x = merged(length, inputs, layout)
        states = begun(self, begin_state, x, layout)
        last: States = []
        outputs: Sequences = x
        for cell, own in self._with_states(states):
            top = cell is self._cells()[-1]
            merge = merge_outputs if top else True
            outputs, own = cell.unroll(length, outputs, own, layout, merge, valid_length)
            last += own
        return outputs, last

    def __getitem__(self, i: int) -> Block:
        return self._cells()[i]

    def __len__(self) -> int:
        return len(self._children)

    def __repr__(self) -> str:
        rows = [f"({key}): {_indented(repr(cell))}" for key, cell in self._children.items()]
        return f"{type(self).__name__}(\n" + "\n".join(rows) + "\n)"


class SequentialRNNCell(_Stack):
    """Cells on top of each other.

    The states are those of the cells, one cell's after the other's.

    Raises (call, unroll):
        ShapeError: there are more or fewer states.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> cells = rnn.SequentialRNNCell()
    >>> cells.add(rnn.RNNCell(1, activation="relu"))
    >>> cells.add(rnn.RNNCell(1, activation="relu"))
    >>> cells.initialize(init.One())
    >>> outputs, states = cells.unroll(3, nd.ones((1, 3, 1)), merge_outputs=True)
    >>> outputs.asnumpy().ravel().tolist(), len(states)
    ([1.0, 3.0, 6.0], 2)
    """


class HybridSequentialRNNCell(_Stack, HybridRecurrentCell):
    """Hybrid cells on top of each other.

    The states are those of the cells, one cell's after the other's.

    Raises (call, unroll):
        ShapeError: there are more or fewer states.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> cells = rnn.HybridSequentialRNNCell()
    >>> cells.add(rnn.RNNCell(1, activation="relu"))
    >>> cells.add(rnn.RNNCell(1, activation="relu"))
    >>> cells.initialize(init.One())
    >>> outputs, states = cells.unroll(3, nd.ones((1, 3, 1)), merge_outputs=True)
    >>> outputs.asnumpy().ravel().tolist(), len(states)
    ([1.0, 3.0, 6.0], 2)
    """


class BidirectionalCell(_Several, HybridRecurrentCell):
    """`l_cell` over the sequence and `r_cell` over it backwards, outputs side by side. It can only be unrolled.

    Raises (call):
        NotImplementedError: always; call `unroll`.

    >>> from gluongraph import init, nd
    >>> from gluongraph.gluon import rnn
    >>> both = rnn.BidirectionalCell(rnn.RNNCell(1, activation="relu"), rnn.RNNCell(1, activation="relu"))
    >>> both.initialize(init.One())
    >>> outputs, states = both.unroll(3, nd.ones((1, 3, 1)), merge_outputs=True)
    >>> outputs.asnumpy()[0].tolist()
    [[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]]
    """

    def __init__(self, l_cell: RecurrentCell, r_cell: RecurrentCell, output_prefix: str = "bi_"):
        super().__init__(prefix="")
        self.register_child(l_cell, "l_cell")
        self.register_child(r_cell, "r_cell")

    def __call__(self, *args: Any) -> Any:
        raise NotImplementedError("a bidirectional cell has no single steps; call unroll over the sequence")

    def unroll(
        self,
        length: int,
        inputs: Sequences,
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: NDArray | None = None,
    ) -> tuple[Sequences, States]:
        """As `RecurrentCell.unroll`; a sequence that ends early is run backwards from its end."""
        self.reset()
        x = merged(length, inputs, layout)
        states = begun(self, begin_state, x, layout)
        left, right = self._cells()
        count = len(left.state_info())
        there, l_last = left.unroll(length, x, states[:count], layout, True, valid_length)
        flipped = _turned(x, layout, valid_length)
        back, r_last = right.unroll(length, flipped, states[count:], layout, True, valid_length)
        assert isinstance(there, NDArray) and isinstance(back, NDArray)
        outputs = nd.concat(there, _turned(back, layout, valid_length), dim=2)
        return given_back(outputs, layout, merge_outputs, valid_length is not None), l_last + r_last

    def __repr__(self) -> str:
        left, right = self._cells()
        return f"{type(self).__name__}(forward={left}, backward={right})"


def _turned(x: NDArray, layout: str, valid_length: NDArray | None) -> NDArray:
    """The steps of each sequence in reverse order; what lies behind its valid length stays there."""
    turned: NDArray = invoke(SequenceReverse, x, valid_length, valid_length is not None, axis=layout.index("T"))
    return turned


def runs_backwards(cell: Block) -> bool:
    """Is there a bidirectional cell in it, so that it has no single steps?

    >>> from gluongraph.gluon import rnn
    >>> runs_backwards(rnn.GRUCell(4)), runs_backwards(rnn.BidirectionalCell(rnn.GRUCell(4), rnn.GRUCell(4)))
    (False, True)
    """
    return isinstance(cell, BidirectionalCell) or any(map(runs_backwards, cell._children.values()))
