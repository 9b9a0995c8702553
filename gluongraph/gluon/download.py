"""Files from the network: fetched whole, checked by their SHA-1, and never left half-written."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import tempfile

from gluongraph.errors import warn

_REPOSITORY = "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/"


def check_sha1(filename: str, sha1_hash: str) -> bool:
    """Is this the SHA-1 of the file's content, in hexadecimal digits?"""
    with open(filename, "rb") as file:
        return hashlib.file_digest(file, "sha1").hexdigest() == sha1_hash


def download(
    url: str,
    path: str | None = None,
    overwrite: bool = False,
    sha1_hash: str | None = None,
    retries: int = 5,
    verify_ssl: bool = True,
) -> str:
    """Fetch a file, unless it is there already with the right hash; gives its name.

    `path` is a file, or a folder in which it gets the last part of the URL as its name; by default the current one.

    Raises:
        AssertionError: the URL names no file, or `retries` is negative.
        OSError: it could not be fetched, or has another hash; the message says where to put the file by hand.
    """
    if retries < 0:
        raise AssertionError(f"download: retries must not be negative, it is {retries}")
    name = _target(url, path)
    if os.path.exists(name) and not overwrite and (sha1_hash is None or check_sha1(name, sha1_hash)):
        return name
    if not verify_ssl:
        warn(f"the server of {url} is not verified (verify_ssl=False)")
    for left in range(max(retries, 1) - 1, -1, -1):
        try:
            _fetch(url, name, sha1_hash, verify_ssl)
            return name
        except OSError as error:
            nowhere = isinstance(getattr(error, "reason", None), socket.gaierror)  # no network: it stays so
            if nowhere or left == 0:
                raise OSError(f"{url} could not be downloaded ({error}); put the file at {name} yourself") from error
            print(f"download of {url} failed ({error}), {left} more attempt{'s' if left > 1 else ''}")
    raise AssertionError("not reached")


def _target(url: str, path: str | None) -> str:
    last = url.split("/")[-1]
    if path is None:
        name = last
    else:
        path = os.path.expanduser(path)
        name = os.path.join(path, last) if os.path.isdir(path) or path.endswith("/") else path
    if not os.path.basename(name):
        raise AssertionError(f"{url} does not end in a file's name; give the path to write to")
    return name


def _fetch(url: str, name: str, sha1_hash: str | None, verify_ssl: bool) -> None:
    """One attempt. What is being fetched has a name of its own until it is whole."""
    import ssl  # here: few programs fetch anything, and all would wait for these when they start
    import urllib.request

    folder = os.path.dirname(os.path.abspath(name))
    context = None if verify_ssl else ssl._create_unverified_context()
    with urllib.request.urlopen(url, context=context) as source:
        print(f"downloading {name} from {url}")
        os.makedirs(folder, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".download-")
        try:
            with open(handle, "wb") as file:
                shutil.copyfileobj(source, file)
            if sha1_hash is not None and not check_sha1(temporary, sha1_hash):
                raise OSError(f"the SHA-1 of its content is not {sha1_hash}")
            os.chmod(temporary, 0o644)
            os.replace(temporary, name)
        except BaseException:
            os.unlink(temporary)
            raise


def data_dir() -> str:
    """Where data sets lie: the folder in the variable MXNET_HOME, else ~/.mxnet."""
    return os.path.expanduser(os.environ.get("MXNET_HOME", os.path.join("~", ".mxnet")))


def repository_url(namespace: str, filename: str) -> str:
    """Where MXNet keeps a file; the variable MXNET_GLUON_REPO names another server."""
    base = os.environ.get("MXNET_GLUON_REPO", _REPOSITORY)
    return f"{base.rstrip('/')}/{namespace}/{filename}"
