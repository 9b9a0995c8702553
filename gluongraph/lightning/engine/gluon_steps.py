"""The step functions of a module whose layers are Gluon's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.lightning.batch import Structure, unflatten
from gluongraph.lightning.engine.steps import Traced, arguments
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.read_attributes import ReadAttributes, noting
from gluongraph.lightning.recording import Recorder, recording
from gluongraph.ndarray import NDArray

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
        for name, block in module.blocks().items():
            if not isinstance(block, HybridBlock):
                message = f"self.{name} is a {type(block).__name__}, no HybridBlock: it cannot be compiled"
                raise misconfigured(message, help="derive it from gluon.HybridBlock")
            self.register_child(block, name)

    @property
    def block(self) -> HybridBlock:
        """Itself."""
        return self

    def refresh(self) -> None:
        """Nothing: blocks say themselves when they change."""

    def run(self, kind: str, structure: Structure, arrays: Sequence[NDArray], dataloader_idx: int | None) -> Traced:
        """The module's `kind` on a batch of these arrays."""
        recorder = Recorder(kind)
        module = self.__dict__["module"]
        batch = unflatten(structure, iter(arrays))
        reads = ReadAttributes()
        with noting(reads, [module], type(module), _OWN), recording(recorder):
            result = getattr(module, kind)(*arguments(module, kind, batch, dataloader_idx))
        reads.guard()
        values = [v if isinstance(v, NDArray) else NDArray(np.asarray(v, np.float64)) for v in recorder.values]
        return Traced(result, tuple(recorder.logged), values)
