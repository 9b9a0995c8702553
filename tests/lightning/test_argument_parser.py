"""Arguments of classes under keys."""

from __future__ import annotations

from typing import Any

import pytest

import gluongraph.lightning as L
from gluongraph.lightning.errors import MisconfigurationException

pytest.importorskip("jsonargparse")

from gluongraph.lightning.argument_parser import LightningArgumentParser, instantiate_class


def test_what_is_no_class_of_a_training() -> None:
    with pytest.raises(MisconfigurationException, match=r"makes none of Trainer, LightningModule"):
        LightningArgumentParser().add_lightning_class_args(dict, "model")


def test_a_function_that_does_not_say_what_it_makes() -> None:
    def make():  # type: ignore[no-untyped-def]
        return L.LightningModule()

    with pytest.raises(MisconfigurationException, match=r"make is a function that does not say.*\n.*\n.*def make"):
        LightningArgumentParser().add_lightning_class_args(make, "model")


def test_several_optimizers_are_linked() -> None:
    torch = pytest.importorskip("torch")
    from gluongraph.lightning.cli import LightningCLI

    class Two(L.LightningModule):
        def __init__(self, first: dict | None = None, second: dict | None = None):  # type: ignore[type-arg]
            super().__init__()
            self.first, self.second = first, second

    class Cli(LightningCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_optimizer_args(nested_key="one", link_to="model.first")
            parser.add_optimizer_args(torch.optim.Adam, nested_key="two", link_to="model.second")

    cli = Cli(Two, run=False, args=["--one=SGD", "--one.lr=0.5", "--two.lr=0.125"])
    parameters = torch.nn.Linear(1, 1).parameters
    first, second = (instantiate_class(parameters(), each) for each in (cli.model.first, cli.model.second))
    assert isinstance(first, torch.optim.SGD) and first.defaults["lr"] == 0.5
    assert isinstance(second, torch.optim.Adam) and second.defaults["lr"] == 0.125


def test_two_automatic_optimizers() -> None:
    torch = pytest.importorskip("torch")
    from gluongraph.lightning.cli import LightningCLI

    class Cli(LightningCLI):
        def add_arguments_to_parser(self, parser: Any) -> None:
            parser.add_optimizer_args(torch.optim.Adam, nested_key="one")
            parser.add_optimizer_args(torch.optim.Adam, nested_key="two")

    with pytest.raises(MisconfigurationException, match=r"one, two.*one optimizer"):
        Cli(L.LightningModule, run=False, args=["--one.lr=0.5"])
