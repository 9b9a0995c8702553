"""The files of vectors on MXNet's server: what there is, and fetching it."""

from __future__ import annotations

import os
import shutil
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from gluongraph.errors import NameNotFoundError, with_user_location
from gluongraph.host import disk
from gluongraph.host.download import check_sha1, data_dir, download, repository_url

TABLE = Path(__file__).with_name("pretrained_vectors.txt")


class Listed(NamedTuple):
    """One file: its SHA-1, the archive that it is in, and the archive's SHA-1."""

    sha1: str
    archive: str
    archive_sha1: str


@lru_cache
def listed(embedding: str) -> dict[str, Listed]:
    """The files of an embedding, "glove" or "fasttext", by name; of others there are none."""
    lines = TABLE.read_text(encoding="ascii").splitlines()[1:]
    rows = (line.split() for line in lines)
    return {file: Listed(*rest) for name, file, *rest in rows if name == embedding}


def default_root() -> str:
    """Where the files lie, unless a program says otherwise."""
    return os.path.join(data_dir(), "embeddings")


def fetched(embedding: str, file: str, root: str) -> str:
    """The path of a file below `root`, which is fetched unless it is there already with the right hash.

    Raises:
        KeyError: the embedding has no such file.
        OSError: it could not be fetched, or is not what it should be; the message says where to put it by hand.
    """
    known = listed(embedding)
    if file not in known:
        message = f"{embedding} has no file {file!r}"
        raise NameNotFoundError(
            with_user_location(
                message, help=f"there are {', '.join(list(known)[:10])}, ...; CustomEmbedding reads others"
            )
        )
    folder = Path(os.path.expanduser(root), embedding)
    path = folder / file
    if path.exists() and check_sha1(str(path), known[file].sha1):
        return str(path)
    archive = str(folder / known[file].archive)
    download(
        repository_url(f"gluon/embeddings/{embedding}", known[file].archive),
        archive,
        sha1_hash=known[file].archive_sha1,
    )
    import zipfile  # here: `import gluongraph` need not wait for it

    with zipfile.ZipFile(archive) as opened:
        if file not in opened.namelist():
            raise OSError(with_user_location(f"{archive} does not contain {file}"))
        with opened.open(file) as source:
            disk.whole(path, lambda target: shutil.copyfileobj(source, target), 0o644)
    if not check_sha1(str(path), known[file].sha1):
        raise OSError(
            with_user_location(f"{path}, of {archive}, is not the file that it should be: its SHA-1 is another one")
        )
    return str(path)
