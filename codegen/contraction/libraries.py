"""Libraries whose matrix products a tuner may try beside our own; none is needed, and none is called unless asked for.

Code calls a library by its path, which `dlopen` gives it the first time, so that nothing of the library gets into the
names of the process, where another user of BLAS would find it. Path and version are part of the target, and with it of
all that plans, code and measurements are remembered by. numpy's OpenBLAS is no candidate: docs/performance.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gluongraph.errors import CompileError, located


@dataclass(frozen=True)
class Library:
    """One that is installed."""

    name: str
    version: str
    path: str


@dataclass(frozen=True)
class _Row:
    """What to install, the file's name up to its version, the product of each dtype into f32, and the function that
    sets how many threads the calling thread may use, and tells how many those were."""

    package: str
    file: str
    products: dict[str, str]
    threads: str


LIBRARIES = {
    "mkl": _Row(
        package="mkl",
        file="libmkl_rt.so",
        products={"f32": "cblas_sgemm", "bf16": "cblas_gemm_bf16bf16f32"},
        threads="MKL_Set_Num_Threads_Local",
    ),
}


def find(names: str | Sequence[str]) -> tuple[Library, ...]:
    """The libraries of these names, or of this one, in the order of the table.

    Raises:
        CompileError: one is unknown, or not installed.
    """
    names = (names,) if isinstance(names, str) else tuple(names)
    if unknown := [name for name in names if name not in LIBRARIES]:
        raise CompileError(located(f"there is no library {unknown[0]!r}; there is {', '.join(LIBRARIES)}"))
    return tuple(_installed(name, row) for name, row in LIBRARIES.items() if name in names)


def _installed(name: str, row: _Row) -> Library:
    from importlib import metadata  # takes 15 ms, and few steps allow a library

    help = "pip install 'gluongraph[libraries]', or leave it out of libraries: nothing needs it"
    try:
        package = metadata.distribution(row.package)
    except metadata.PackageNotFoundError:
        raise CompileError(located(f"{name} is not installed in this environment", help=help)) from None
    files = [file for file in package.files or () if file.name.startswith(row.file)]
    path = Path(str(package.locate_file(files[0]))).resolve() if files else Path(row.file)
    try:
        loaded = ctypes.CDLL(str(path))
        for symbol in (*row.products.values(), row.threads):
            getattr(loaded, symbol)
    except (OSError, AttributeError) as error:
        raise CompileError(located(f"{name} {package.version} cannot be used: {error}", help=help)) from None
    return Library(name, package.version, str(path))


def symbol(library: Library, dtype: str) -> str:
    """The function that code calls for a product of matrices of that dtype; `text` defines it."""
    return f"gluongraph_{library.name}_{dtype}"


def text(library: Library, dtype: str) -> str:
    """A function in LLVM's language: C = A B of row-major matrices into f32, on the calling thread alone.

    `(ta, tb, m, n, kk, a, lda, b, ldb, c, ldc)` as of cblas: 111 of a matrix as it lies, 112 of a transposed one.
    """
    row, function = LIBRARIES[library.name], symbol(library, dtype)
    texts = {"path": library.path, "product": row.products[dtype], "threads": row.threads}
    constants = [
        f'@{function}_{key} = private constant [{len(value.encode()) + 1} x i8] c"{_escaped(value)}\\00"'
        for key, value in texts.items()
    ]
    return "\n".join([*constants, _TEXT.replace("FUNCTION", function)])


def _escaped(value: str) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:02x}" for byte in value.encode()
    )


_NUMBERS = ("ta", "tb", "m", "n", "k", "lda", "ldb", "ldc")
# What `dlsym` finds is kept: threads that come at once find the same. Threads of the library's own would come on top of
# ours; how many the calling thread may use otherwise is put back, since it may be one of the user's.
_TEXT = """
@FUNCTION_known_product = linkonce_odr hidden global ptr null
@FUNCTION_known_threads = linkonce_odr hidden global ptr null
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)
define linkonce_odr i64 @FUNCTION(i64 %ta, i64 %tb, i64 %m, i64 %n, i64 %k, ptr %a, i64 %lda, ptr %b, i64 %ldb,
                                  ptr %c, i64 %ldc) {
begin:
  %known = load atomic ptr, ptr @FUNCTION_known_product acquire, align 8
  %there = icmp ne ptr %known, null
  br i1 %there, label %go, label %find
find:
  %library = call ptr @dlopen(ptr @FUNCTION_path, i32 1)
  %limits = call ptr @dlsym(ptr %library, ptr @FUNCTION_threads)
  store atomic ptr %limits, ptr @FUNCTION_known_threads release, align 8
  %found = call ptr @dlsym(ptr %library, ptr @FUNCTION_product)
  store atomic ptr %found, ptr @FUNCTION_known_product release, align 8
  br label %go
go:
  %product = phi ptr [%known, %begin], [%found, %find]
  %limit = load atomic ptr, ptr @FUNCTION_known_threads acquire, align 8
NARROWED
  %before = call i32 %limit(i32 1)
  call void %product(i32 101, i32 %ta_, i32 %tb_, i32 %m_, i32 %n_, i32 %k_, float 1.0, ptr %a, i32 %lda_,
                     ptr %b, i32 %ldb_, float 0.0, ptr %c, i32 %ldc_)
  %after = call i32 %limit(i32 %before)
  ret i64 0
}
""".replace("NARROWED", "\n".join(f"  %{x}_ = trunc i64 %{x} to i32" for x in _NUMBERS))
