"""Training without Python: builds the runner, whose sources lie in runtime/native, and puts bundles together.

A bundle is a folder that needs nothing but the system's C and C++ libraries:

    digits/
      gg-run           runtime/native, compiled here
      lib/             libtvm_ffi.so and libtvm_runtime.so of the wheels that are installed
      include/, lib/libgluongraph.so    with `embed`: the same for C programs, and their header
      licenses/        of these libraries
      digits.gga
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

from gluongraph import runtime
from gluongraph.artefact import compatibility, file, signing
from gluongraph.errors import CompileError, FormatError, MXNetError, with_user_location
from gluongraph.host import disk, store
from gluongraph.host.file_names import check_name
from gluongraph.host.interrupts import guarded, in_parallel
from gluongraph.host.process import threads
from gluongraph.host.progress import quiet, task
from gluongraph.host.store import Entry

NATIVE = Path(runtime.__file__).parent / "native"
HEADER = NATIVE / "gluongraph.h"
LIBRARIES = {"tvm_ffi": "libtvm_ffi.so", "tvm": "libtvm_runtime.so"}  # package -> what a runner needs of it
# No fused multiply-add: rates are the very numbers that Python computes. Warnings are errors, as in the tests.
FLAGS = (
    *("-std=c++17", "-O2", "-s", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"),
)
PROGRAM, LIBRARY = "gg-run", "libgluongraph.so"
_PROGRAM_ONLY = {"main", "options", "walk", "dataset", "npy"}


def bundle(
    artefact: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    embed: bool = False,
    trust: str = signing.KEYS,
    progress: bool = True,
) -> int:
    """Put an artefact, the runner and the libraries that it needs into a new folder; gives the number of bytes.

    With `embed` a library and its header are there as well, for programs of one's own in C. The code of the artefact is
    what will run, and must be trusted as `mx.load` has it. The runner is compiled at the first call, which takes half a
    minute; on a terminal it shows how far it is, without `progress` or with GG_PROGRESS=0 it does not.

    Raises:
        ArgumentError: the name of the file is empty.
        FormatError: there is no artefact, it is damaged, or is not for CPUs.
        MXNetError: its code is not trusted.
        FileExistsError: the folder is there, and is not empty.
        CompileError: there is no C++ compiler, or it fails.
    """
    check_name("bundle", artefact, "bundle('step.gga', 'step')")
    check_name("bundle", folder, "bundle('step.gga', 'step')", "folder")
    signing.check_trust(trust)
    found = file.read(artefact)
    if not (verdict := signing.judge(found, trust)).trusted:
        help = "gluongraph key trust KEY, or trust the file itself: trust='file', --trust file"
        raise MXNetError(with_user_location(f"{artefact} is not bundled: {verdict.why}", help=help))
    if (kind := found.told["target"]["kind"]) != "llvm":
        raise FormatError(
            with_user_location(f"{artefact} is compiled for {kind}", help="export it for a CPU: the runner has no GPU")
        )
    place = Path(folder)
    if place.exists() and any(place.iterdir()):
        raise FileExistsError(with_user_location(f"{place} is there, and is not empty", help="give another folder"))
    with quiet(not progress):
        runner = _runner()
    (place / "lib").mkdir(parents=True, exist_ok=True)
    for name, data in runner.files.items():  # the bytes whose digests were compared, not the cache's files once more
        if embed or name != f"lib/{LIBRARY}":
            (place / name).write_bytes(data)
            (place / name).chmod(0o755)
    for name, target in runner.links.items():
        shutil.copy(target, place / name)
    if embed:
        (place / "include").mkdir()
        shutil.copy(HEADER, place / "include")
    licenses = place / "licenses"
    licenses.mkdir()
    for package in ("apache-tvm", "apache-tvm-ffi"):
        for path in distribution(package).files or ():
            if path.name in ("LICENSE", "NOTICE"):
                shutil.copy(str(path.locate()), licenses / f"{package}-{path.name}")
    copy = shutil.copy(artefact, place)
    if file.read(copy).digest != found.digest:  # the runner takes a while to build
        Path(copy).unlink()
        raise FormatError(with_user_location(f"{artefact} has been changed meanwhile", help="make the bundle again"))
    return sum(each.stat().st_size for each in place.rglob("*") if each.is_file())


def built() -> Path:
    """A folder with the runner, its library for C, and links to the libraries that both need: compiled once, and kept.

    Raises:
        CompileError: there is no C++ compiler, or it fails.
    """
    if (path := _runner().path) is None:
        raise CompileError(
            with_user_location("the runner cannot be kept", help="GG_CACHE, or else TMPDIR, names a folder for it")
        )
    return path


def _runner() -> Entry:
    """The runner as the cache has it, or compiled now. Raises what `built` does."""
    base = store.folder() or store.temporary()
    place = base / f"runner-{_key()}" if base is not None else None
    if place is not None and (found := store.get(place)) is not None:
        return found
    with disk.temporary_folder() as folder:
        _build(folder)
        return store.put(place, folder)


def _build(folder: Path) -> None:
    """Compile every source once, and link the runner and the library of them."""
    if shutil.which(name := compiler()[0]) is None:
        raise CompileError(
            with_user_location(f"there is no C++ compiler {name}", help="install g++, or name one in CXX")
        )
    (folder / "lib").mkdir()
    for package, library in LIBRARIES.items():
        (folder / "lib" / library).symlink_to(_package(package) / "lib" / library)
    sources = sorted(NATIVE.glob("*.cc"))
    objects = {source.name: folder / f"{source.stem}.o" for source in sources}
    lines = [[*compiler(), "-c", str(source), "-o", str(objects[source.name])] for source in sources]
    outputs = (folder / PROGRAM, folder / "lib" / LIBRARY)
    with task(len(lines) + len(outputs), "building the runner") as done:

        def compiled(line: Sequence[str]) -> None:
            _compiled(line)
            done()

        in_parallel([partial(compiled, line) for line in lines], threads())
        for output in outputs:
            compiled([*compiler(), *linked([str(path) for path in objects.values()], output)])
    for path in objects.values():
        path.unlink()


def command(output: Path) -> list[str]:
    """The one line that compiles the runner; the libraries that it needs are to lie in lib/ beside it.

    >>> command(Path("gg-run"))[-1]
    '-Wl,-rpath,$ORIGIN/lib'
    """
    return [*compiler(), *linked(sorted(map(str, NATIVE.glob("*.cc"))), output)]


def compiler() -> list[str]:
    """The compiler, and how it is to compile."""
    versions = compatibility.versions()
    defined = (f'-DGG_TVM="{versions["tvm"]}"', f'-DGG_TVM_FFI="{versions["tvm-ffi"]}"')
    return [os.environ.get("CXX", "g++"), *FLAGS, *defined, "-isystem", str(_package("tvm_ffi") / "include")]


def linked(sources: Sequence[str], output: Path) -> list[str]:
    """What makes a program of sources or objects, or where the output is one a library for C."""
    shared = output.suffix == ".so"
    return [
        *(each for each in sources if not (shared and Path(each).stem in _PROGRAM_ONLY)),
        *(("-shared",) if shared else ()),
        *("-o", str(output)),
        "-Wl,--no-as-needed",  # what kernels call is registered by TVM's runtime when it is loaded
        *(str(_package(package) / "lib" / library) for package, library in LIBRARIES.items()),
        "-Wl,-rpath,$ORIGIN" + ("" if shared else "/lib"),
    ]


def _compiled(line: Sequence[str]) -> None:
    done = subprocess.run(guarded(line), capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{line[0]} cannot compile the runner: {done.stderr.strip()[-2000:]}")


def _package(name: str) -> Path:
    """Where a package is installed; it is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise CompileError(f"{name} is not installed, whose libraries the runner needs")
    return Path(spec.origin).resolve().parent


def _key() -> str:
    """A digest of all that decides what is built, and of where the libraries lie; not of where the sources do."""
    digest = hashlib.sha256(" ".join(command(Path(PROGRAM))).replace(f"{NATIVE}/", "").encode())
    for path in sorted(NATIVE.glob("*.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]


if __name__ == "__main__":
    print(shlex.join(command(Path(PROGRAM))))
