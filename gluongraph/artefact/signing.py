"""Who made an artefact: the signatures in a file, and whether this user trusts them to run its code.

What is signed is the SHA-256 of `artefact.json`, which holds dtype, shape and SHA-256 of every other tensor: no byte
that means anything can be changed without it. Each use of a key has a first line of its own, so that no signature made
for one purpose serves another.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass

from gluongraph.artefact import keys
from gluongraph.artefact.file import Artefact
from gluongraph.errors import MXNetError, warn, with_user_location

HERE, ED25519 = "made_here", "ed25519"  # in a file's metadata: a tag of the local key; public key and signature
KEYS, FILE, NONE = "keys", "file", "none"  # what `mx.load(trust=...)` takes, beside a public key
_SIGNATURE = re.compile("([0-9a-f]{64}) ([0-9a-f]{128})")


@dataclass(frozen=True)
class Verdict:
    """May the code of an artefact run: is it `trusted`, and if not why; and is it what this user exported here?"""

    trusted: bool
    mine: bool
    why: str = ""


def signed_text(digest: str) -> bytes:
    """What an Ed25519 signature is of, for an `artefact.json` of this SHA-256, in hex."""
    return f"gluongraph artefact signature 1\n{digest}".encode()


def _tag(key: bytes, digest: str) -> str:
    """What says that somebody with the local key has exported an artefact: an HMAC-SHA256 (RFC 2104), in hex."""
    return hmac.digest(key, f"gluongraph artefact made here 1\n{digest}".encode(), "sha256").hex()


def vouch(digest: str) -> dict[str, str]:
    """What this user writes into the metadata of an artefact: the local tag, and a signature if there is a key for it.

    Raises:
        OSError: a key cannot be read or made.
        KeyFileError: a key must not be used, or the package cryptography is missing.
    """
    return _tagged(digest) | _signed(digest)


def signatures(digest: str) -> dict[str, str]:
    """What `vouch` gives, as far as that can be had; what is missing is warned of."""
    found: dict[str, str] = {}
    for made, what in ((_tagged, "as yours, so its code will not run when it is loaded"), (_signed, "for others")):
        try:
            found |= made(digest)
        except (OSError, keys.KeyFileError) as error:
            warn(f"the artefact is not signed {what}: {error}")
    return found


def _tagged(digest: str) -> dict[str, str]:
    key = keys.local_key(make=True)
    assert key is not None
    return {HERE: _tag(key, digest)}


def _signed(digest: str) -> dict[str, str]:
    made = keys.sign(signed_text(digest))
    return {} if made is None else {ED25519: " ".join(part.hex() for part in made)}


def check_trust(trust: str) -> None:
    """Raise ValueError where it is nothing that `mx.load(trust=...)` takes."""
    if trust not in (KEYS, FILE, NONE):
        try:
            keys.public_key(trust)
        except (ValueError, AttributeError):
            message = f"trust is 'keys', 'file', 'none' or a public key, not {trust!r}"
            raise ValueError(
                with_user_location(message, help="`gluongraph key show` prints a public key: ed25519:...")
            ) from None


def judge(artefact: Artefact, trust: str) -> Verdict:
    """May the code of an artefact run? See `mx.load`."""
    try:
        mine = _is_mine(artefact)
        wrong = ""
    except (OSError, keys.KeyFileError) as error:
        mine, wrong = False, f"; {error}"
    if trust == FILE or (mine and trust != NONE):
        return Verdict(True, mine)
    if trust == NONE:
        return Verdict(False, mine, "trust='none'")
    try:
        why = _fault(artefact, trust)
    except (OSError, MXNetError) as error:
        why = str(error)
    return Verdict(not why, mine, why + wrong if why else "")


def _is_mine(artefact: Artefact) -> bool:
    tag = artefact.metadata.get(HERE)
    key = keys.local_key() if tag is not None else None
    return key is not None and hmac.compare_digest(_tag(key, artefact.digest).encode(), str(tag).encode())


def _fault(artefact: Artefact, trust: str) -> str:
    """Why the signature of another user does not vouch for it; empty where it does."""
    if (text := artefact.metadata.get(ED25519)) is None:
        return "it was not exported by this user on this machine, and nobody has signed it"
    if (found := _SIGNATURE.fullmatch(text)) is None:
        return "its signature is damaged"
    public, signature = map(bytes.fromhex, found.groups())
    here = [keys.public_key(trust)] if trust != KEYS else []
    own = keys.own()
    known = [*here, *([own] if own else []), *keys.trusted()]
    key = next((each for each in known if each.data == public), None)
    if key is None:
        return f"it is signed by {keys.PublicKey(public).text}, a key that is not trusted here"
    if not key.verifies(signature, signed_text(artefact.digest)):
        return f"the signature by {key.line} is not of this file"
    return ""
