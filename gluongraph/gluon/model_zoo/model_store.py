"""`mx.gluon.model_zoo.model_store`: files of trained weights in a folder. None come with gluongraph."""

from __future__ import annotations

import os
from pathlib import Path

from gluongraph.errors import with_user_location
from gluongraph.host.download import check_sha1, data_dir

_model_sha1: dict[str, str] = {}  # of files whose content is known: libraries add theirs


def short_hash(name: str) -> str:
    """The eight digits that the name of a model's file ends with.

    Raises:
        ValueError: no library has said what the file is.
    """
    if name not in _model_sha1:
        raise ValueError(with_user_location(f"no trained weights of {name} are known"))
    return _model_sha1[name][:8]


def _folder(root: str | None) -> Path:
    return Path(os.path.expanduser(root)) if root else Path(data_dir(), "models")


def get_model_file(name: str, root: str | None = None) -> str:
    """The file <name>-<hash>.params, or <name>.params, in a folder; by default `models` in MXNET_HOME or ~/.mxnet.

    Raises:
        OSError: there is none; where to put it. Or it is not the one that is known.
    """
    folder = _folder(root)
    found = sorted(p for p in folder.glob(f"{name}*.params") if p.stem == name or p.stem.rpartition("-")[0] == name)
    if not found:
        help = f"put MXNet's file there, {name}-<hash>.params; none are downloaded"
        raise OSError(with_user_location(f"no weights of {name} are in {folder}", help=help))
    if name in _model_sha1 and not check_sha1(str(found[-1]), _model_sha1[name]):
        raise OSError(
            with_user_location(f"{found[-1]} has another checksum than the weights of {name}", help="copy it again")
        )
    return str(found[-1])


def purge(root: str | None = None) -> None:
    """Remove all files of weights from the folder."""
    for path in _folder(root).glob("*.params"):
        path.unlink()
