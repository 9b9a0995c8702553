"""`mxnet` and its submodules as facades: they look names up in gluongraph when asked, and say what is missing."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gluongraph.errors import MissingError, with_user_location
from gluongraph.mxnet.missing import MissingModule, advice, beginnings
from gluongraph.mxnet.names import ATTRIBUTES, INSTEAD, MODULES, TRIED, VERSION

ROOT = "mxnet"


class Facade(ModuleType):
    """The module `mxnet` or one below it: its names are those of a module here."""

    def __init__(self, fullname: str, target: ModuleType):
        super().__init__(fullname, f"MXNet's module {fullname}: {target.__name__} under another name.")
        self.__dict__["__path__"] = []  # so that `import mxnet.anything` asks the finder
        self.__dict__["_target"] = target

    def __getattr__(self, name: str) -> Any:
        path = _path(self.__name__)
        if name == "__all__":
            own = {attribute for module, attribute in ATTRIBUTES if module == path}
            names = (n for n in dir(self._target) if not _inner(vars(self._target).get(n)))
            return sorted(n for n in {*names, *own} if not n.startswith("_"))
        if name == "__version__" and not path:
            return VERSION
        if (place := ATTRIBUTES.get((path, name))) is not None:
            module, _, attribute = place.partition(":")
            found = importlib.import_module(module)
            return getattr(found, attribute) if attribute else found
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if _covers_a_module(self._target, name):
            return getattr(self._target, name)
        below = f"{path}.{name}".lstrip(".")
        if _place(below) is not None or _absent(below):
            return importlib.import_module(f"{ROOT}.{below}")
        try:
            return getattr(self._target, name)
        except AttributeError:
            message = _missing(below, self._target)
        except NotImplementedError as refused:  # the module itself says what to do
            message = str(refused)
        raise MissingError(message)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Facade) and (
            _covers_a_module(self._target, name) or (_path(self.__name__), name) in ATTRIBUTES
        ):
            return  # the import of mxnet.a.b would put the module in the place of what a calls b
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}: {self._target.__name__}>"

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._target)})


class Absent(ModuleType):
    """A module of MXNet's that scripts import and may never use: whatever is asked of it is missing."""

    def __init__(self, fullname: str):
        super().__init__(fullname, f"MXNet's module {fullname}, which does not exist here.")
        self.__dict__["__path__"] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise MissingError(_missing(f"{_path(self.__name__)}.{name}", None))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """For what is a class or a function in MXNet."""
        raise MissingError(_missing(_path(self.__name__), None))

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """As the base of a class: objects of that cannot be made."""

        def refuse(*args: Any, **kwargs: Any) -> Any:
            self()

        return (type(self.__name__, (), {"__new__": refuse}),)


def _inner(value: Any) -> bool:
    """Is it of the graph's own making, which modules import to work with? `import *` must not bring it along."""
    return str(getattr(value, "__module__", "")).startswith(("gluongraph.mxops.", "gluongraph.ops."))


def _covers_a_module(owner: ModuleType, name: str) -> bool:
    """Has a package something else by the name of one of its modules? model_zoo.vision.alexnet is a function."""
    return f"{owner.__name__}.{name}" in sys.modules and not isinstance(getattr(owner, name), ModuleType)


def _path(fullname: str) -> str:
    """What stands behind `mxnet.`"""
    return fullname[len(ROOT) + 1 :]


def _place(path: str) -> str | None:
    """The module here that has the names of mxnet.<path>; None if there is none."""
    if path in MODULES:
        place = MODULES[path]
    elif any(p in INSTEAD for p in beginnings(path)):
        return None
    else:
        place = "gluongraph." + path
    try:
        return place if importlib.util.find_spec(place) is not None else None
    except ModuleNotFoundError:  # a parent of it is no package
        return None


def _absent(path: str) -> bool:
    """Is this a module that does not exist, and that importing is no test for?"""
    return path in INSTEAD and path not in MODULES and path not in TRIED


def _within_absent(path: str) -> bool:
    """Is this such a module, or a name in one that somebody imports: `from mxnet.numpy import ndarray`?"""
    return path not in MODULES and any(_absent(p) or (p in MODULES and p in INSTEAD) for p in beginnings(path))


def _missing(path: str, near: ModuleType | None) -> str:
    """The message for an attribute or a module that does not exist."""
    help = advice(path)
    if help is None and near is not None:
        public = [n for n in dir(near) if not n.startswith("_")]
        found = difflib.get_close_matches(path.rsplit(".", 1)[-1], public, n=3, cutoff=0.5)
        owner = path.rpartition(".")[0]
        named = [f"{owner}.{n}".lstrip(".") for n in found]
        help = f"the nearest that does: {', '.join(named)}" if named else f"dir({ROOT}.{owner}) lists what does"
    return with_user_location(
        f"{ROOT}.{path} does not exist in gluongraph", help=help or f"dir({ROOT}) lists what does"
    )


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ROOT and not fullname.startswith(ROOT + "."):
            return None
        if _place(_path(fullname)) is None and not _within_absent(_path(fullname)):
            owner = sys.modules.get(fullname.rpartition(".")[0])
            near = owner._target if isinstance(owner, Facade) else None
            raise MissingModule(_missing(_path(fullname), near), name=fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        place = _place(_path(spec.name))
        return Absent(spec.name) if place is None else Facade(spec.name, importlib.import_module(place))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: names are looked up when asked for."""


_FINDER = _Finder()


def install() -> None:
    """From now on `import mxnet` finds gluongraph; a second call does nothing.

    Raises:
        ImportError: the real MXNet has been imported already.
    """
    known = sys.modules.get(ROOT)
    if known is not None and not isinstance(known, Facade):
        raise ImportError(f"mxnet has been imported already, from {known.__file__}; call install() before that")
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def uninstall() -> None:
    """Take back what `install` did."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
    for name in [n for n, m in sys.modules.items() if isinstance(m, (Facade, Absent))]:
        del sys.modules[name]
