"""Strategies as objects, with Lightning's names and arguments: `Trainer(strategy=DDPStrategy(...))`.

What a strategy does here is said by its name (docs/distributed.md). Arguments about how PyTorch does it, as
`find_unused_parameters` or the sizes of buckets, mean nothing for compiled steps and are taken; those that ask for what
does not exist here are refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar

from gluongraph.errors import with_user_location
from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.ranks import Ranks

# Of PyTorch's processes, buckets and wrappers: a compiled step knows all of that itself.
_PYTORCH = (
    *("accelerator", "parallel_devices", "cluster_environment", "process_group_backend", "timeout"),
    *("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers", "bucket_cap_mb"),
)
_PLUGINS = dict.fromkeys(("checkpoint_io", "precision_plugin"), "Trainer(precision=...) and save_checkpoint do that")
_HOOKS = dict.fromkeys(
    ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper"),
    "a gluon.Trainer with compression_params compresses what is exchanged",
)
_OFFLOAD = "parameters and states are not moved out of the way"


class Strategy:
    """What ranks keep and exchange: the base of all strategies. `strategy_name` is what `Trainer(strategy=...)` takes
    as a text.

    Raises:
        MisconfigurationException: an argument asks for what does not exist here.
        TypeError: there is no such argument.
    """

    strategy_name = "auto"
    _taken: tuple[str, ...] = _PYTORCH
    _refused: ClassVar[Mapping[str, str]] = _PLUGINS

    def __init__(self, *args: Any, **arguments: Any):
        arguments = dict(zip(self._taken, args, strict=False)) | arguments
        known = (*self._taken, *self._refused)
        for name, value in arguments.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                message = f"{type(self).__name__} has no argument {name!r}"
                help = f"did you mean {near[0]}=?" if near else f"there are {', '.join(known)}"
                raise TypeError(with_user_location(message, help=help))
            if name in self._refused and value not in (None, False):
                raise misconfigured(f"{type(self).__name__}({name}={value!r})", help=self._refused[name])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strategy_name!r})"

    # -- of a Trainer

    ranks: Ranks | None = None  # those of the Trainer that has it

    @property
    def num_processes(self) -> int:
        """How many ranks there are.

        >>> Strategy().num_processes
        1
        """
        return 1 if self.ranks is None else self.ranks.size

    @property
    def world_size(self) -> int:
        """As `num_processes`."""
        return self.num_processes

    @property
    def global_rank(self) -> int:
        """The number of this rank among all of them."""
        return 0 if self.ranks is None else self.ranks.rank

    @property
    def local_rank(self) -> int:
        """The number of this rank on its host."""
        return 0 if self.ranks is None else self.ranks.local_rank

    @property
    def root_device(self) -> Any:
        """Where tensors of PyTorch's are: on the CPU, which is where batches are made."""
        try:
            return import_whole("torch").device("cpu")
        except ImportError:
            return "cpu"

    @property
    def is_global_zero(self) -> bool:
        """Is this the first rank?"""
        return self.global_rank == 0

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks."""
        if self.ranks is not None:
            self.ranks.barrier()


class SingleDeviceStrategy(Strategy):
    """One rank.

    >>> SingleDeviceStrategy(device="cpu").strategy_name
    'single_device'
    """

    strategy_name = "single_device"
    _taken = ("device", "accelerator")


class ParallelStrategy(Strategy):
    """The base of those for several ranks."""

    strategy_name = "ddp"


class DDPStrategy(ParallelStrategy):
    """Each rank keeps everything; gradients are averaged.

    >>> import gluongraph.lightning as L
    >>> L.Trainer(max_epochs=1, strategy=DDPStrategy(find_unused_parameters=False), logger=False).world_size
    1
    """

    _taken = (*_PYTORCH, "start_method")
    _refused: ClassVar[Mapping[str, str]] = {
        **_PLUGINS,
        **_HOOKS,
        "model_averaging_period": "gradients are averaged, not weights",
    }

    def __init__(
        self,
        *args: Any,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        start_method: str = "popen",
        **arguments: Any,
    ):
        super().__init__(*args, **arguments)
        if start_method != "popen":
            message = f"DDPStrategy(start_method={start_method!r}): ranks are started as programs"
            raise misconfigured(message, help="leave it out; in a notebook: gluongraph run -n 2 script.py")


_SHARDED = {"FULL_SHARD": "fsdp", "SHARD_GRAD_OP": "deepspeed_stage_2", "NO_SHARD": "ddp"}


class FSDPStrategy(ParallelStrategy):
    """Parameters, gradients and states are divided among the ranks; with "SHARD_GRAD_OP" gradients and states, with
    "NO_SHARD" nothing.

    >>> FSDPStrategy(sharding_strategy="SHARD_GRAD_OP").strategy_name
    'deepspeed_stage_2'
    """

    _taken = (
        *(*_PYTORCH, "auto_wrap_policy", "activation_checkpointing", "activation_checkpointing_policy"),
        *("state_dict_type", "use_orig_params", "limit_all_gathers", "forward_prefetch", "backward_prefetch"),
        *("sync_module_states", "device_id"),
    )
    _refused: ClassVar[Mapping[str, str]] = {
        **_PLUGINS,
        "cpu_offload": _OFFLOAD,
        "mixed_precision": "Trainer(precision=...)",
        "device_mesh": "parameters are divided among all ranks",
    }

    def __init__(self, *args: Any, sharding_strategy: Any = "FULL_SHARD", **arguments: Any):
        super().__init__(*args, **arguments)
        name = str(getattr(sharding_strategy, "name", sharding_strategy))
        if name not in _SHARDED:
            message = f"FSDPStrategy(sharding_strategy={name!r}): there are {', '.join(map(repr, _SHARDED))}"
            raise misconfigured(message)
        self.strategy_name = _SHARDED[name]


class DeepSpeedStrategy(ParallelStrategy):
    """ZeRO: `stage` 1 divides the optimizer's states among the ranks, 2 gradients as well, 3 parameters as well.

    >>> DeepSpeedStrategy(stage=3).strategy_name
    'deepspeed_stage_3'
    """

    _taken = (
        *(*_PYTORCH, "allgather_bucket_size", "reduce_bucket_size", "overlap_comm", "contiguous_gradients"),
        *("allgather_partitions", "reduce_scatter", "zero_allow_untested_optimizer", "logging_batch_size_per_gpu"),
        *("zero_optimization", "load_full_weights", "exclude_frozen_parameters", "logging_level"),
    )
    _refused: ClassVar[Mapping[str, str]] = {
        **_PLUGINS,
        **dict.fromkeys(("offload_optimizer", "offload_parameters", "remote_device", "nvme_path"), _OFFLOAD),
        "config": "stage=..., and the arguments of the Trainer",
    }

    def __init__(self, *args: Any, stage: int = 2, **arguments: Any):
        super().__init__(*args, **arguments)
        if stage not in (1, 2, 3):
            raise misconfigured(f"DeepSpeedStrategy(stage={stage!r})", help="1, 2 or 3")
        self.strategy_name = f"deepspeed_stage_{stage}"


def strategy_of_trainer(given: Any, ranks: Ranks) -> Strategy:
    """The object that `Trainer.strategy` is, for an object or a name that `arguments.strategy_of` knows."""
    made = given if isinstance(given, Strategy) else _named(str(given), ranks.size)
    made.ranks = ranks
    return made


def _named(name: str, ranks: int) -> Strategy:
    if name == "fsdp":
        return FSDPStrategy()
    if name.startswith("deepspeed"):
        stage = name.rpartition("_")[2]
        return DeepSpeedStrategy(stage=int(stage) if stage.isdigit() else 2)
    if name == "single_device" or (name == "auto" and ranks == 1):
        return SingleDeviceStrategy()
    return DDPStrategy()


__all__ = [
    "DDPStrategy",
    "DeepSpeedStrategy",
    "FSDPStrategy",
    "ParallelStrategy",
    "SingleDeviceStrategy",
    "Strategy",
]
