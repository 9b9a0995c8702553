"""Whether compiled code may run on this machine: checked before any of it is loaded."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import gluongraph
from gluongraph.codegen.targets import usable_flags
from gluongraph.host import cuda_compiler, nvidia

ABI = ("tvm", "tvm-ffi")  # what compiled code is linked against


def versions() -> dict[str, str]:
    """The versions that an artefact notes."""
    return {"gluongraph": gluongraph.__version__, "tvm": _version("apache-tvm"), "tvm-ffi": _version("apache-tvm-ffi")}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def misfit(told: Mapping[str, Any]) -> str:
    """Why the code of an artefact must not run here; empty where it may."""
    here = versions()
    for name in ABI:
        if told["writer"].get(name) != here[name]:
            return f"it was compiled with {name} {told['writer'].get(name)}, and here is {here[name]}"
    target = told["target"]
    if target["kind"] == "cuda":
        return _cuda_misfit(target)
    if target["machine"] != platform.machine() or platform.system() != "Linux":
        return f"it is for Linux on {target['machine']}, and this is {platform.system()} on {platform.machine()}"
    if missing := sorted(set(target["needs"]) - usable_flags()):
        return f"this CPU lacks {', '.join(missing)}"
    return ""


def _cuda_misfit(target: Mapping[str, Any]) -> str:
    """Why code for a GPU must not run on this machine's."""
    arch, code = target["arch"], target.get("code", "cubin")
    if (version := nvidia.capability()) is None:
        return f"it is for a GPU, {arch}, and here is none" + ("" if nvidia.driver() else ", or no driver of one")
    if not nvidia.fits(arch, code, version):
        return f"it is for {arch}, and this GPU is {nvidia.architecture(version)}"
    if code == "source" and not cuda_compiler.compiler():
        return "it holds CUDA source alone, and here is no compiler of that"
    return ""
