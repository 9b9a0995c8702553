"""One call of fit, validate, test or predict: what comes before the loop, the loop, and what comes after."""

from __future__ import annotations

import sys
from typing import Any

from gluongraph.errors import with_user_location
from gluongraph.lightning import checkpoints
from gluongraph.lightning.data import generators
from gluongraph.lightning.defaults import in_order
from gluongraph.lightning.engine.engines import Engines
from gluongraph.lightning.errors import misconfigured
from gluongraph.lightning.foreign import is_data_module
from gluongraph.lightning.hook_calls import HookCalls
from gluongraph.lightning.hooks import TRANSFER_HOOKS, DataHooks, overrides
from gluongraph.lightning.hparams import check_agreement
from gluongraph.lightning.loader_source import LoaderSource
from gluongraph.lightning.metric_states import computed_of_all_ranks
from gluongraph.lightning.module import LightningModule, _is_torch, blocks_of
from gluongraph.lightning.optimizers import Configured, configured, gluon_trainer
from gluongraph.lightning.plain import module_of
from gluongraph.lightning.states import RunningStage, TrainerFn, TrainerStatus

TRUE_PRECISIONS = {"64-true": "float64", "bf16-true": "bfloat16", "16-true": "float16"}  # which parameters are cast to
STAGES = {
    "fit": RunningStage.TRAINING,
    "validate": RunningStage.VALIDATING,
    "test": RunningStage.TESTING,
    "predict": RunningStage.PREDICTING,
}


class Run:
    """A call of a Trainer: `fn` is "fit", "validate", "test" or "predict"."""

    def __init__(self, trainer: Any, fn: str, model: Any, loaders: dict[str, Any], datamodule: Any, ckpt_path: Any):
        self.trainer, self.fn, self.loaders, self.datamodule = trainer, fn, loaders, datamodule
        if datamodule is not None and not is_data_module(datamodule):
            help = "derive it from L.LightningDataModule"
            raise TypeError(with_user_location(f"datamodule is {type(datamodule).__name__}, no data module", help=help))
        if model is None and trainer.lightning_module is None:
            raise TypeError(with_user_location(f"`Trainer.{fn}()` has no model", help=f"trainer.{fn}(model, loader)"))
        self.given = model is not None
        self.module = trainer.lightning_module if model is None else module_of(model)
        self.ckpt_path = ckpt_path

    def __call__(self) -> Any:
        """Run it. An error of any kind reaches on_exception, finalizes loggers and leaves the Trainer usable."""
        with self.trainer.termination.noticed(self.trainer.world_size):
            return self._to_its_end()

    def _to_its_end(self) -> Any:
        trainer = self.trainer
        state = trainer.state
        state.fn, state.status, state.stage = TrainerFn(self.fn), TrainerStatus.RUNNING, STAGES[self.fn]
        trainer.should_stop = False
        try:
            return self._run()
        except KeyboardInterrupt as error:
            trainer.say("\nDetected KeyboardInterrupt, attempting graceful shutdown ...")
            self._interrupted(error)
            sys.exit(1)
        except BaseException as error:
            self._interrupted(error)
            raise
        finally:
            trainer.state.stage, trainer.batch = None, None
            if trainer.data is not None:
                trainer.data.close()
            if hasattr(trainer.profiler, "close"):
                trainer.profiler.close()

    def _interrupted(self, error: BaseException) -> None:
        trainer = self.trainer
        trainer.state.status = TrainerStatus.INTERRUPTED
        if trainer.hooks is not None:
            trainer.hooks.call_callbacks("on_exception", error)
        if trainer.datamodule is not None:
            trainer.datamodule.on_exception(error)
        for logger in trainer.loggers:
            logger.finalize("failed")

    def _run(self) -> Any:
        trainer, module = self.trainer, self.module
        self._attach()
        self._verify()
        path = checkpoints.selected(trainer, self.fn, self.ckpt_path, self.given)
        trainer.ckpt_path = path
        self._setup()
        saved = None if path is None else checkpoints.read(path)
        trainer.metric_log.reset()
        if self.fn == "fit":
            self._prepare_training(saved)
        else:
            trainer.engines = Engines(trainer, module, trainer.is_torch)
            if saved is not None:
                checkpoints.begin_loading(trainer, saved)
            _describe_to_loggers(trainer, module)
        with computed_of_all_ranks(module, trainer.ranks):
            results = self._run_stage()
            self._finish()
        return results

    def _attach(self) -> None:
        """Make module and data module those of the Trainer."""
        trainer, module = self.trainer, self.module
        trainer.lightning_module, module.trainer = module, trainer
        trainer.datamodule = self.datamodule
        if self.datamodule is not None:
            self.datamodule.trainer = trainer
        trainer.data = LoaderSource(trainer, module, self.datamodule, self.loaders)
        own = module.configure_callbacks()
        own = list(own) if isinstance(own, (list, tuple)) else [own]
        if own:
            kinds = {type(each) for each in own}
            trainer.callbacks = in_order([c for c in trainer.callbacks if type(c) not in kinds] + own)
        trainer.hooks = HookCalls(trainer, module, trainer.callbacks, LightningModule)
        for loop in (trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
            loop.loaders = None
        trainer.fit_loop.loader = None

    def _verify(self) -> None:
        """Raise MisconfigurationException for hooks that are missing."""
        trainer, hooks, name = self.trainer, self.trainer.hooks, type(self.module).__name__
        if self.fn == "fit":
            for needed in ("training_step", "configure_optimizers"):
                if not hooks.overridden(needed):
                    raise misconfigured(f"No `{needed}()` method defined: {name} has none, and `Trainer.fit` needs it")
            manual = not self.module.automatic_optimization
            if manual and (trainer.accumulate_grad_batches != 1 or trainer.gradient_clip_val):
                message = "accumulate_grad_batches and gradient_clip_val, with manual optimization"
                raise misconfigured(message, help="accumulate and clip in training_step")
        elif self.fn in ("validate", "test"):
            step = {"validate": "validation_step", "test": "test_step"}[self.fn]
            if not hooks.overridden(step):
                raise misconfigured(f"No `{step}()` method defined: {name} has none, and `Trainer.{self.fn}` needs it")
        elif not (hooks.overridden("predict_step") or overrides(self.module, "forward", LightningModule)):
            raise misconfigured(f"{name} has neither forward nor predict_step, which `Trainer.predict` calls")

    def _setup(self) -> None:
        """Prepare the data, and call the setup hooks."""
        trainer, module, data = self.trainer, self.module, self.datamodule
        for owner in (data, module):
            if owner is not None:
                if trainer.local_rank == 0:
                    owner.prepare_data()
                trainer.barrier()
        for logger in trainer.loggers:
            getattr(logger, "experiment", None)  # where it has one, it is made now, for all ranks alike
        if data is not None:
            data.setup(stage=self.fn)
        trainer.hooks.call("setup", stage=self.fn)
        trainer.hooks.call_module("configure_model")
        trainer.is_torch = _is_torch(module)
        if trainer.is_torch and blocks_of(module):
            message = f"{type(module).__name__} has layers of PyTorch's and Gluon's"
            raise misconfigured(message, help="use those of one of them; mx.from_torch makes a Gluon block of a module")
        owners = (module,) if data is None else (data, module)
        trainer.transfers = any(overrides(o, name, DataHooks) for o in owners for name in TRANSFER_HOOKS)
        self._cast()

    def _cast(self) -> None:
        """Cast the module's parameters, where the precision asks for it."""
        trainer, module = self.trainer, self.module
        dtype = TRUE_PRECISIONS.get(trainer.precision)
        trainer.cast = dtype
        if dtype is None:
            return
        if trainer.is_torch:
            from gluongraph.torch.export import torch

            module.to(getattr(torch(), dtype))
        else:
            for block in blocks_of(module).values():
                block.cast(dtype)

    def _prepare_training(self, saved: Any) -> None:
        """Optimizers, the engine, and the state of a checkpoint."""
        trainer, module = self.trainer, self.module
        trainer.engines = Engines(trainer, module, trainer.is_torch)
        if saved is not None:
            saved = checkpoints.of_rank(saved, trainer.ranks)
            checkpoints.begin_loading(trainer, saved)
        manual = not module.automatic_optimization
        made: Configured = configured(trainer.hooks.call_module("configure_optimizers"), manual)
        trainer.optimizers, trainer.lr_scheduler_configs = made.optimizers, made.schedulers
        how: dict[str, Any] = {}
        if trainer.world_size > 1:
            how = {"kvstore": "dist_sync"} | ({"strategy": trainer.sharding} if trainer.sharding else {})
        eager = trainer.engines.choose() == "eager"
        own = trainer.engines.steps.block._collect_params_with_prefix() if eager and trainer.is_torch else None
        trainer.gluon_trainer = gluon_trainer(made.optimizers, module, how, own) if made.optimizers else None
        trainer.engines.prepare(trainer.gluon_trainer)
        trainer.hooks.call("on_fit_start")
        _describe_to_loggers(trainer, module)
        if saved is not None:
            checkpoints.load_training(trainer, saved)
        if trainer.engines.mode != "fused":
            trainer.say(trainer.engines.describe())

    def _run_stage(self) -> Any:
        trainer = self.trainer
        trainer.barrier()
        if self.fn == "fit":
            self._sanity_check()
            with trainer.stage("train"):
                trainer.fit_loop.run()
            return None
        if self.fn == "predict":
            return trainer.predict_loop.predict()
        loop = trainer.validate_loop if self.fn == "validate" else trainer.test_loop
        return loop.run()

    def _sanity_check(self) -> None:
        """A few batches of the validation, before a training that begins."""
        trainer = self.trainer
        fresh = trainer.global_step == 0 and trainer.current_epoch == 0 and trainer.counters.batch_idx < 0
        if not (trainer.enable_validation and trainer.num_sanity_val_steps > 0 and fresh):
            return
        with trainer.stage("sanity_check"), generators.kept():
            trainer.hooks.call_callbacks("on_sanity_check_start")
            trainer.validate_loop.run()
            trainer.hooks.call_callbacks("on_sanity_check_end")
            trainer.metric_log.reset()

    def _finish(self) -> None:
        trainer = self.trainer
        if trainer.step is not None:
            trainer.step.wait()
        for logger in trainer.loggers:
            logger.finalize("success")
        if self.fn == "fit":
            if trainer.gluon_trainer is not None:
                trainer.gluon_trainer.make_whole()
            trainer.hooks.call("on_fit_end")
        if trainer.datamodule is not None:
            trainer.datamodule.teardown(stage=self.fn)
        trainer.hooks.call("teardown", stage=self.fn)
        trainer.profiler.describe()
        trainer.state.status = TrainerStatus.FINISHED


def _describe_to_loggers(trainer: Any, module: Any) -> None:
    """Give the loggers the hyperparameters of module and data module, and the module for its graph."""
    if not trainer.enable_autolog_hparams:
        return
    found: dict[str, Any] = {}
    owners = [o for o in (trainer.datamodule, module) if o is not None and getattr(o, "_log_hyperparams", False)]
    if len(owners) == 2 and trainer.loggers:
        check_agreement(*owners)
    for owner in owners:
        found.update(owner.hparams)
    for logger in trainer.loggers:
        if found:
            logger.log_hyperparams(found)
        logger.log_graph(module)
        logger.save()
