"""What gluongraph finds on this machine: processor, threads, linker, TVM, CUDA, caches, packages; and what to install.

  gluongraph doctor          # a list; what is missing says what it would be good for
  gluongraph doctor --json

Exits with 1 if something is missing that compiled steps need.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from gluongraph.errors import pluralize
from gluongraph.host.terminal import as_json

if TYPE_CHECKING:
    from gluongraph.codegen.rule import Target

OPTIONAL = {  # package: the extra that installs it, and what needs it
    "torch": ("bench", "a peer of gluongraph bench"),
    "jax": ("bench", "a peer of gluongraph bench"),
    "optax": ("bench", "the optimizers of JAX in gluongraph bench"),
    "matplotlib": ("bench", "gluongraph bench --chart to a .png; .svg needs nothing"),
    "pillow": ("data", "mx.image, image datasets and recordio: decoding and encoding pictures"),
    "scikit-learn": ("examples", "examples/digits.py and examples/deploy.py"),
    "onnx": ("onnx", "mx.onnx, export_onnx, commands given an .onnx file, examples/deploy.py"),
    "cryptography": ("sign", "gluongraph key make, signing artefacts, verifying those that others have signed"),
    "nvidia-cuda-runtime": ("cuda", "running on NVIDIA's GPUs, unless CUDA 13 is installed"),
    "nvidia-cuda-nvrtc": ("cuda", "compiling for NVIDIA's GPUs without nvcc"),
    "nvidia-cuda-cccl": ("cuda", "compiling for NVIDIA's GPUs without nvcc"),
    "cuda-bindings": ("cuda", "compiling for NVIDIA's GPUs without nvcc"),
}


@dataclass(frozen=True)
class Finding:
    """One line: what, what was found, and where something is amiss what to do; `fatal` if steps cannot be compiled."""

    what: str
    found: str
    advice: str = ""
    fatal: bool = False


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--json", action="store_true", help="for machines")


def run(options: argparse.Namespace) -> int:
    """Print the findings."""
    findings = [finding for look in LOOKS for finding in look()]
    if options.json:
        as_json([asdict(finding) for finding in findings])
    else:
        width = max(len(f.what) for f in findings)
        for f in findings:
            print(f"{f.what:{width}}  {f.found}" + (f"\n{'':{width}}  -> {f.advice}" if f.advice else ""))
    return int(any(f.fatal for f in findings))


def versions() -> list[Finding]:
    """gluongraph, Python, and what gluongraph needs."""
    import gluongraph

    found = [Finding("gluongraph", f"{gluongraph.__version__}, Python {platform.python_version()}")]
    for package, wanted in requirements().items():
        version = version_of(package)
        advice = "" if version else f"pip install '{wanted}'"
        found.append(Finding(package, version or "missing", advice, fatal=not version))
    return found


def requirements(extra: str = "") -> dict[str, str]:
    """The packages that gluongraph itself declares, or one of its extras: by name, what pip is asked for."""
    rows = [row.partition(";") for row in metadata.requires("gluongraph") or ()]
    wanted = [form.strip() for form, _, marker in rows if extra == _extra_of(marker)]
    return {re.split(r"[\s\[<>=!~(]", form)[0]: form for form in wanted}


def _extra_of(marker: str) -> str:
    found = re.search(r"extra *== *['\"]([\w-]+)", marker)
    return found[1] if found else ""


def processor() -> list[Finding]:
    """The CPU, the target row that it gets, threads and who set them."""
    from gluongraph.bench.report import processor as processor_name
    from gluongraph.codegen.targets import TARGETS, cpu_flags, target
    from gluongraph.host.cores import cores, quota
    from gluongraph.host.process import THREADS, threads

    on = target()
    known = {flag for row in TARGETS.values() for flag in row.needs}
    flags = " ".join(sorted(cpu_flags() & known)) or "none that a target asks for"
    forced = os.environ.get("GG_TARGET")
    setting = next((n for n in THREADS if os.environ.get(n)), None)
    mine, physical, time = len(os.sched_getaffinity(0)), len(cores()), quota()
    seen = f"{os.cpu_count()} logical cores, {mine} of them for this process, on {pluralize(physical, 'physical core')}"
    why = f"as {setting} says" if setting else "one for each physical core"
    if not setting and time is not None and time < physical:
        why = f"since this container may use the time of {time:g} cores"
    return [
        Finding("processor", f"{processor_name()}, {seen}"),
        Finding("features", flags),
        Finding("target", on.name + (f", as GG_TARGET={forced} says" if forced else "") + _means(on)),
        Finding("threads", f"{threads()}, {why}"),
    ]


def _means(on: Target) -> str:
    """What kernels of a target compute with."""
    from gluongraph.codegen.rule import Cpu

    if not isinstance(on, Cpu):
        return ""
    products = "in tiles, by AMX" if on.tiles else "in pairs, by AVX512-BF16" if on.dots else "as float32"
    return f": vectors of {on.lanes} float32 numbers; products of bfloat16 are made {products}"


def linker() -> list[Finding]:
    """What links compiled code, so that it can be kept."""
    from gluongraph.codegen.tvm.linking import command_for
    from gluongraph.errors import CompileError

    try:
        return [Finding("linker", " ".join(command_for(platform.machine())))]
    except CompileError:
        advice = "install gcc, clang or lld, or pip install ziglang: without one code is compiled anew in every process"
        return [Finding("linker", "missing", advice)]


def cuda() -> list[Finding]:
    """NVIDIA's driver, devices, and a compiler for them."""
    from gluongraph.context import num_gpus
    from gluongraph.host import cuda_compiler

    count = num_gpus()
    if not count:
        return [Finding("CUDA", "no device; compiled for the CPU")]
    found = shutil.which("nvcc") or cuda_compiler.compiler()
    advice = "" if found else "pip install 'gluongraph[cuda]' to compile for it"
    return [Finding("CUDA", f"{count} devices, compiler: {found or 'none'}", advice)]


def cache() -> list[Finding]:
    """Where compiled code is kept, and how much there is."""
    from gluongraph.host import store

    if os.environ.get("GG_CACHE", "") == "0":
        return [Finding("cache", "off, as GG_CACHE=0 says", "unset GG_CACHE: every process compiles anew")]
    try:
        place = store.asked_for()
    except RuntimeError as error:
        return [Finding("cache", f"none: {error}", "name a folder in GG_CACHE: every process compiles anew")]
    if wrong := store.refusal(place):
        found, _, advice = wrong.partition("\n  help: ")
        return [Finding("cache", f"not used: {found}", advice)]
    files = list(_files(place))
    count = sum(path.name == "step.so" for path, _ in files)
    size = sum(size for _, size in files)
    base = next(p for p in (place, *place.parents) if p.exists())
    advice = "" if os.access(base, os.W_OK) else f"{base} cannot be written: set GG_CACHE to a folder that can"
    return [Finding("cache", f"{place}: {pluralize(count, 'step')}, {size / 2**20:.1f} MiB", advice)]


def _files(place: Path) -> Iterator[tuple[Path, int]]:
    """The files below a folder with their sizes, without those that another process takes away meanwhile."""
    for folder, _, names in os.walk(place):
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat().st_size


def tuned() -> list[Finding]:
    """What has been measured on this processor, by this version."""
    from gluongraph.codegen.cache.measurements import table
    from gluongraph.codegen.targets import target

    found = table(target())
    if found.path is None:
        return [Finding("tuned", "not kept: GG_TUNED=0 or GG_CACHE=0")]
    if not found.path.exists():
        return [Finding("tuned", "nothing yet: gluongraph tune measures which kernels are fastest here")]
    faster = sum(bool(row.candidate.setting) for row in found)
    told = f"{found.path}: {pluralize(len(found), 'kernel')}, {faster} faster than by the rules, "
    return [Finding("tuned", told + f"{found.path.stat().st_size / 2**10:.1f} KiB")]


def packages() -> list[Finding]:
    """What is good to have."""
    found = []
    for name, (extra, use) in OPTIONAL.items():
        version = version_of(name)
        advice = "" if version else f"pip install 'gluongraph[{extra}]'"
        found.append(Finding(name, version or f"not installed; needed by {use}", advice))
    python = os.environ.get("GG_MXNET_PYTHON")
    found.append(Finding("mxnet", python or "GG_MXNET_PYTHON names no interpreter: a peer of gluongraph bench"))
    return found


def version_of(package: str) -> str:
    """The version of an installed package; '' of another one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


LOOKS: tuple[Callable[[], list[Finding]], ...] = (versions, processor, linker, cuda, cache, tuned, packages)
