"""The hooks of modules and data modules, under the name that Lightning's scripts import them by."""

from gluongraph.lightning.hooks import DataHooks, ModelHooks

__all__ = ["DataHooks", "ModelHooks"]
