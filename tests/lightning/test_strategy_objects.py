"""Strategies as objects: the same as by name; what does not exist here is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import gluongraph.lightning as L
from gluongraph.lightning import strategies
from gluongraph.lightning.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, SingleDeviceStrategy

OBJECTS: list[tuple[Any, str]] = [
    (DDPStrategy(find_unused_parameters=True, timeout=timedelta(minutes=5)), "ddp"),
    (FSDPStrategy(auto_wrap_policy={int}), "fsdp"),
    (FSDPStrategy(sharding_strategy="SHARD_GRAD_OP"), "deepspeed_stage_2"),
    (FSDPStrategy(sharding_strategy="NO_SHARD", cpu_offload=False), "ddp"),
    *[(DeepSpeedStrategy(stage=stage), f"deepspeed_stage_{stage}") for stage in (1, 2, 3)],
    (SingleDeviceStrategy("cpu"), "single_device"),
    (strategies.ParallelStrategy(), "ddp"),
]


@pytest.mark.parametrize(("made", "name"), OBJECTS, ids=repr)
def test_an_object_is_what_its_name_is(made: Any, name: str) -> None:
    trainer, named = (L.Trainer(max_epochs=1, strategy=each, logger=False) for each in (made, name))
    assert trainer.sharding == named.sharding and trainer.strategy is made
    assert type(named.strategy) is type(made) or name in ("ddp", "deepspeed_stage_2")


def test_the_strategy_of_a_trainer_knows_the_ranks() -> None:
    trainer = L.Trainer(max_epochs=1, logger=False)
    assert isinstance(trainer.strategy, SingleDeviceStrategy)
    assert not isinstance(trainer.strategy, strategies.ParallelStrategy)
    assert (trainer.strategy.num_processes, trainer.strategy.global_rank, trainer.strategy.is_global_zero) == (
        1,
        0,
        True,
    )
    trainer.strategy.barrier()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DDPStrategy(ddp_comm_hook=print), "ddp_comm_hook.*compression_params"),
        (lambda: DDPStrategy(model_averaging_period=10), "gradients are averaged"),
        (lambda: DDPStrategy(start_method="spawn"), "started as programs"),
        (lambda: FSDPStrategy(cpu_offload=True), "not moved out of the way"),
        (lambda: FSDPStrategy(mixed_precision=object()), "precision"),
        (lambda: FSDPStrategy(sharding_strategy="HYBRID_SHARD"), "'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD'"),
        (lambda: DeepSpeedStrategy(stage=4), "1, 2 or 3"),
        (lambda: DeepSpeedStrategy(config="ds.json"), "stage="),
    ],
)
def test_what_does_not_exist_is_refused(make: Any, message: str) -> None:
    with pytest.raises(L.MisconfigurationException, match=rf"(?s){message}"):
        make()


def test_mistyped_arguments_are_named() -> None:
    with pytest.raises(
        TypeError, match=r"(?s)no argument 'find_unused_parameter'.*did you mean find_unused_parameters="
    ):
        DDPStrategy(find_unused_parameter=True)
