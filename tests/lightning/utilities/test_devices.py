"""move_data_to_device: whatever can be moved, in batches of all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gluongraph import nd
from gluongraph.lightning.utilities import move_data_to_device


class Movable:
    """Notes where it was moved; gives nothing, as some classes of users do, or itself."""

    def __init__(self, gives: bool):
        self.gives, self.device = gives, None

    def to(self, device: Any) -> Any:
        self.device = device
        return self if self.gives else None


@pytest.mark.parametrize("gives", [False, True])
def test_what_can_be_moved_is_moved(gives: bool) -> None:
    inner, outer = Movable(gives), Movable(gives)
    array, other = np.ones(2), nd.ones(2)
    batch = {"a": [inner, 1], "b": (array, other, None, "text")}
    moved = move_data_to_device(batch, "cpu")
    assert moved["a"][0] is inner and inner.device == "cpu" and moved["a"][1] == 1
    assert moved["b"][0] is array and moved["b"][1] is other and moved["b"][2:] == (None, "text")
    assert move_data_to_device(outer, "cpu") is outer and outer.device == "cpu"


def test_tensors_as_in_lightning() -> None:
    torch = pytest.importorskip("torch")
    lightning = pytest.importorskip("lightning.pytorch.utilities")
    batch = {"x": torch.ones(2), "rest": [torch.zeros(1), "name", (3,)]}
    for move in (move_data_to_device, lightning.move_data_to_device):
        moved = move(batch, "meta")
        assert moved["x"].device.type == moved["rest"][0].device.type == "meta" and moved["rest"][1:] == ["name", (3,)]
