"""The step functions of a module whose layers are Gluon's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import is_float
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.lightning.batch import Structure, unflatten
from gluongraph.lightning.engine.steps import TRAINS_NOTHING, Traced, arguments
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.module import blocks_of
from gluongraph.lightning.read_attributes import ReadAttributes, noting
from gluongraph.lightning.recording import Recorder, recording
from gluongraph.ndarray import NDArray
from gluongraph.tracing.tracer import has_gradient

_OWN = frozenset({"_trainer", "_current_fx"})  # attributes that LightningModule keeps for itself


class GluonSteps(HybridBlock):
    """A block whose children are the blocks of a module.

    Raises:
        MisconfigurationException: the module has no hybrid blocks.
    """

    torch = False

    def __init__(self, module: Any):
        super().__init__(prefix="")
        self.__dict__["module"] = module
        for name, block in blocks_of(module).items():
            if not isinstance(block, HybridBlock):
                message = f"self.{name} is a {type(block).__name__}, no HybridBlock: it cannot be compiled"
                raise misconfigured(message, help="derive it from gluon.HybridBlock")
            self.register_child(block, name)

    @property
    def block(self) -> HybridBlock:
        """Itself."""
        return self

    def refresh(self, trains: bool = True) -> None:
        """Nothing: blocks say themselves when they change."""

    def take_over(self) -> None:
        """Nothing: parameters are the memory of blocks."""

    def run(self, kind: str, structure: Structure, arrays: Sequence[NDArray], dataloader_idx: int | None) -> Traced:
        """The module's `kind` on a batch of these arrays."""
        recorder = Recorder(kind)
        module = self.__dict__["module"]
        batch = unflatten(structure, iter(arrays))
        reads = ReadAttributes()
        with noting(reads, [module], type(module), _OWN), recording(recorder):
            result = getattr(module, kind)(*arguments(module, kind, batch, dataloader_idx))
            if kind == "training_step":
                self._check_trains(result)
        reads.guard()
        values = [v if isinstance(v, NDArray) else NDArray(np.asarray(v, np.float64)) for v in recorder.outputs]
        return Traced(result, tuple(recorder.logged), values)

    def _check_trains(self, result: Any) -> None:
        """Raise MisconfigurationException for a loss that depends on no parameter that is trained."""
        loss = result.get("loss") if isinstance(result, dict) else result
        if not isinstance(loss, NDArray) or not is_float(loss.type.dtype):
            return  # what else is wrong with it is said elsewhere
        trained = [p for p in self.collect_params().values() if p.grad_req != "null" and p.ready]
        if not has_gradient(loss, [array for p in trained for array in p.list_data()]):
            help = "leave out .detach() and nd.BlockGrad on the way to it; or let parameters have grad_req='write'"
            raise misconfigured(TRAINS_NOTHING, help=help)
