"""The signing keys of a user, in the user's configuration folder.

    $XDG_CONFIG_HOME/gluongraph/     by default ~/.config/gluongraph
      local.key       32 random bytes: what carries a tag made with it was exported by this user, here
      signing.key     an Ed25519 private key and its public key, if `gluongraph key make` has made them
      trusted.keys    public keys of others, a line each: ed25519:<64 hex digits> and a name

As with ssh, a secret that others may read and a list that others may write are refused.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.host import disk, private
from gluongraph.host.interrupts import import_whole

LOCAL, SIGNING, TRUSTED = "local.key", "signing.key", "trusted.keys"
LENGTH = 32  # bytes of each key
_LINE = re.compile(r"ed25519:([0-9a-f]{64})(?:\s+(\S.*?))?\s*")
_ED25519 = "cryptography.hazmat.primitives.asymmetric.ed25519"
_PRIVATE = "ed25519-private:"


class KeyFileError(MXNetError):
    """A file of keys that must not be believed, is damaged, or cannot be used here."""


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key (RFC 8032), and what its owner is called here."""

    data: bytes
    name: str = ""

    @property
    def text(self) -> str:
        """The key without its name: ed25519: and 64 hex digits."""
        return f"ed25519:{self.data.hex()}"

    @property
    def line(self) -> str:
        """The key and its name, as files hold them."""
        return f"{self.text} {self.name}".rstrip()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Was the message signed by the owner of this key?

        Raises:
            KeyFileError: the package cryptography is missing.
        """
        try:
            ed25519, exceptions = import_whole(_ED25519), import_whole("cryptography.exceptions")
        except ImportError:
            raise _no_cryptography("a signature cannot be verified") from None
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.data).verify(signature, message)
        except (exceptions.InvalidSignature, ValueError):
            return False
        return True


def public_key(text: str) -> PublicKey:
    """The key that a line of text holds.

    >>> public_key("ed25519:" + "1f" * 32 + " ada").name
    'ada'

    Raises:
        ValueError: it holds none.
    """
    found = _LINE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            with_user_location(f"{text!r} is no public key", help="`gluongraph key show` prints one: ed25519:...")
        )
    return PublicKey(bytes.fromhex(found[1]), found[2] or "")


def folder() -> Path:
    """Where keys are kept; it need not be there.

    Raises:
        OSError: this user has no home folder.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):  # a relative one is to be ignored, as freedesktop.org's specification says
        return Path(base) / "gluongraph"
    try:
        return Path.home() / ".config" / "gluongraph"
    except RuntimeError as error:
        raise OSError(f"there is no folder for keys: {error}") from None


# -- exported here


def local_key(make: bool = False) -> bytes | None:
    """The secret of this user on this machine; None where there is none, unless it is to be made now.

    Raises:
        OSError: it cannot be read, or made.
        KeyFileError: others may read it, or it is damaged.
    """
    path = folder() / LOCAL
    text = _read(path, secret=True)
    if text is None and make:
        _create(path, secrets.token_hex(LENGTH) + "\n")
        text = _read(path, secret=True)
    if text is None:
        return None
    with suppress(ValueError):
        if len(key := bytes.fromhex(text)) == LENGTH:
            return key
    raise KeyFileError(f"{path} is damaged; remove it: what was exported with it is then compiled again when loaded")


# -- signatures for others


def make(name: str = "") -> PublicKey:
    """Make this user's pair of keys.

    Raises:
        FileExistsError: there is one.
        KeyFileError: the package cryptography is missing.
        OSError: it cannot be written.
    """
    try:
        ed25519 = import_whole(_ED25519)
    except ImportError:
        raise _no_cryptography("keys cannot be made") from None
    key = ed25519.Ed25519PrivateKey.generate()
    made = PublicKey(key.public_key().public_bytes_raw(), name)
    path = folder() / SIGNING
    if not _create(path, f"{_PRIVATE}{key.private_bytes_raw().hex()}\n{made.line}\n"):
        raise FileExistsError(f"{path} is there already: what it has signed is known by it")
    return made


def own() -> PublicKey | None:
    """This user's public key; None where `make` has made none.

    Raises:
        OSError: it cannot be read.
        KeyFileError: others may read the file, or it is damaged.
    """
    pair = _pair()
    return pair[1] if pair is not None else None


def sign(message: bytes) -> tuple[bytes, bytes] | None:
    """This user's public key and signature of a message; None where `make` has made no keys.

    Raises:
        OSError: the key cannot be read.
        KeyFileError: others may read it, it is damaged, or the package cryptography is missing.
    """
    if (pair := _pair()) is None:
        return None
    try:
        ed25519 = import_whole(_ED25519)
    except ImportError:
        raise _no_cryptography(f"{folder() / SIGNING} cannot sign") from None
    key = ed25519.Ed25519PrivateKey.from_private_bytes(pair[0])
    return key.public_key().public_bytes_raw(), key.sign(message)


def _pair() -> tuple[bytes, PublicKey] | None:
    """This user's private key, and the public one."""
    path = folder() / SIGNING
    if (text := _read(path, secret=True)) is None:
        return None
    private, _, public = text.partition("\n")
    with suppress(ValueError):
        if private.startswith(_PRIVATE) and len(key := bytes.fromhex(private.removeprefix(_PRIVATE))) == LENGTH:
            return key, public_key(public)
    raise KeyFileError(f"{path} is damaged; it holds an Ed25519 private key and its public key, a line each")


# -- whom this user trusts


def trusted() -> list[PublicKey]:
    """The keys of others whose code may run here.

    Raises:
        OSError: the list cannot be read.
        KeyFileError: others may write to it, or a line of it is no key.
    """
    path = folder() / TRUSTED
    return listed(_read(path, secret=False) or "", str(path))


def trust(key: PublicKey) -> None:
    """Add a key to those that are trusted; one that is there gets the new name.

    Raises:
        OSError, KeyFileError: the list cannot be read or written.
    """
    others = [each for each in trusted() if each.data != key.data]
    _replace(folder() / TRUSTED, [*others, key])


def distrust(which: str) -> list[PublicKey]:
    """Take the keys of this name, or this key, from those that are trusted: what was taken.

    Raises:
        OSError, KeyFileError: the list cannot be read or written.
    """
    known = trusted()
    gone = [each for each in known if which in (each.name, each.text, each.line)]
    if gone:
        _replace(folder() / TRUSTED, [each for each in known if each not in gone])
    return gone


def listed(text: str, what: str) -> list[PublicKey]:
    """The keys in a text, a line each; empty lines and comments, after #, are left out.

    Raises:
        KeyFileError: a line is no key. `what` names the text.
    """
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    try:
        return [public_key(line) for line in lines if line]
    except ValueError as error:
        raise KeyFileError(f"{what}: {error}") from None


# -- files


def _read(path: Path, secret: bool) -> str | None:
    """The text of a file that only this user may write, and if it is `secret` read; None where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with open(handle, encoding="utf-8", errors="replace") as file:
        _expect_own(path.parent, os.stat(path.parent), 0o022)
        _expect_own(path, os.fstat(handle), 0o077 if secret else 0o022)
        return file.read()


def _expect_own(path: Path, found: os.stat_result, forbidden: int) -> None:
    if wrong := private.fault(path, found, forbidden):
        message = f"{wrong}, so its keys are not used"
        if found.st_uid == os.getuid():
            right = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
            message += f"; chmod {right:o} {path} if all in it is yours"
        raise KeyFileError(message)


def _create(path: Path, text: str) -> bool:
    """Write a file that only this user may read, whole or not at all; False where there is one already."""
    private.make(path.parent)
    try:
        disk.whole(path, lambda file: file.write(text.encode()), 0o600, replace=False)
    except FileExistsError:
        return False
    return True


def _replace(path: Path, keys: Iterable[PublicKey]) -> None:
    private.make(path.parent)
    text = "".join(f"{key.line}\n" for key in keys)
    disk.whole(path, lambda file: file.write(text.encode()), 0o600)


def _no_cryptography(what: str) -> KeyFileError:
    return KeyFileError(f"{what} without the package cryptography: pip install 'gluongraph[sign]'")
