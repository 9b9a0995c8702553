"""Kernels are the recorded ones, instruction by instruction: refactoring changes no code."""

from __future__ import annotations

import re
from collections.abc import Iterator

import kernel_digests
import pytest


@pytest.fixture(scope="module", autouse=True)
def no_tuning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a tuner has found on this machine does not count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("case", [*kernel_digests.cases(kernel_digests.SMALL)], ids=" ".join)
def test_kernels_are_as_recorded(case: tuple[str, str, str]) -> None:
    before = kernel_digests.recorded()[" ".join(case)]
    difference = kernel_digests.changed(before, kernel_digests.digests(*case))
    assert not difference, f"{difference}; where that was meant: python tests/codegen/kernel_digests.py --update"


def test_other_code_has_other_digests() -> None:
    """Vectors of half the length, in the same kernels; and the digests of one target are the same twice."""
    wide, narrow = (kernel_digests.digests("mlp-8", target, "32") for target in ("x86-64-v3", "x86-64"))
    assert re.match(r"\d+ of \d+ kernels differ", kernel_digests.changed(wide, narrow))
    assert not kernel_digests.changed(wide, kernel_digests.digests("mlp-8", "x86-64-v3", "32"))
