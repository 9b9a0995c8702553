"""Keys that say whose compiled code runs here: your own, and those of people you trust.

  gluongraph key make --name ada      # a pair of keys: what you export from now on is signed by it, for others
  gluongraph key show > ada.pub       # the public one, which others need, and gg-run --key
  gluongraph key trust ada.pub        # there: the code of artefacts that this key has signed runs
  gluongraph key list
  gluongraph key distrust ada         # by name or by key
  gluongraph key sign step.gga        # an artefact from before there were keys, whose code you vouch for

An artefact holds compiled code, which can do whatever its user can. Its code is run only if you have exported it on
this machine (a secret made at the first export tells), if a key that is trusted here has signed it, or if you say so:
mx.load(path, trust="file"), or --trust file of train and bundle. Otherwise its graph, which is data, is compiled
again. Keys lie in $XDG_CONFIG_HOME/gluongraph, by default ~/.config/gluongraph. Making keys, signing with them and
verifying need the package cryptography: pip install 'gluongraph[sign]'.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluongraph.cli import Refused
from gluongraph.cli.words import sentence

if TYPE_CHECKING:
    from gluongraph.artefact.keys import PublicKey

TAKES = {  # action: what it takes behind it
    "make": "",
    "show": "",
    "trust": "a public key, or a file of public keys",
    "list": "",
    "distrust": "the name or the public key of one that is trusted",
    "sign": "an artefact",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("action", choices=tuple(TAKES), help="what to do")
    parser.add_argument("what", nargs="?", metavar="KEY", help="of trust, distrust: a key or a file; of sign: a file")
    parser.add_argument("--name", default="", help="of make and trust: what the owner of the key is called here")


def run(options: argparse.Namespace) -> int:
    """Do it, and say what has been done."""
    from gluongraph.errors import MXNetError

    takes = TAKES[options.action]
    if bool(takes) != (options.what is not None):
        raise Refused(f"{options.action} takes {takes or 'nothing'} behind it")
    if options.name and options.action not in ("make", "trust"):
        raise Refused("--name is for make and trust")
    if len(options.name.splitlines()) > 1 or "#" in options.name or options.name != options.name.strip():
        raise Refused(f"{options.name!r} is no name: it stands in one line, without #")
    try:
        print(ACTIONS[options.action](options.what, options.name), end="")
    except (OSError, MXNetError, ValueError) as error:
        raise Refused(sentence(error)) from error
    return 0


def _make(what: None, name: str) -> str:
    from gluongraph.artefact import keys

    return f"{keys.make(name).line}\n"


def _show(what: None, name: str) -> str:
    from gluongraph.artefact import keys

    if (own := keys.own()) is None:
        raise Refused("you have no keys for others yet; `gluongraph key make` makes them")
    return f"{own.line}\n"


def _trust(what: str, name: str) -> str:
    from gluongraph.artefact import keys

    given = _given(what)
    if name and len(given) > 1:
        raise Refused(f"{what} holds {len(given)} keys, and --name is for one")
    given = [keys.PublicKey(key.data, name or key.name) for key in given]
    for key in given:
        keys.trust(key)
    return "".join(f"trusted: {key.line}\n" for key in given)


def _given(what: str) -> list[PublicKey]:
    """The public keys that a word of the command line means."""
    from gluongraph.artefact import keys

    path = Path(what)
    if not path.exists():
        return [keys.public_key(what)]
    found = keys.listed(path.read_text(encoding="utf-8", errors="replace"), what)
    if not found:
        raise Refused(f"{what} holds no public key; `gluongraph key show` prints one")
    return found


def _list(what: None, name: str) -> str:
    from gluongraph.artefact import keys

    own = keys.own()
    lines = [f"yours: {own.line}"] if own is not None else []
    lines += [f"trusted: {key.line}" for key in keys.trusted()]
    return "".join(f"{line}\n" for line in lines or ["no keys: the code of what you export here runs here, no other"])


def _distrust(what: str, name: str) -> str:
    from gluongraph.artefact import keys

    if not (gone := keys.distrust(what)):
        raise Refused(f"no key that is trusted is called {what}; `gluongraph key list` lists them")
    return "".join(f"no longer trusted: {key.line}\n" for key in gone)


def _sign(what: str, name: str) -> str:
    from gluongraph.artefact import file, signing

    found = file.read(what)
    file.write(
        what, {key: part for key, part in found.told.items() if key not in file.WRITTEN}, found.arrays, signing.vouch
    )
    return f"signed: {what}\n"


ACTIONS: dict[str, Callable[[Any, str], str]] = {
    "make": _make,
    "show": _show,
    "trust": _trust,
    "list": _list,
    "distrust": _distrust,
    "sign": _sign,
}
