"""The signatures of the runner: SHA-512 and Ed25519 against the RFC's vectors, hashlib and the package cryptography."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import shutil
import subprocess
from collections.abc import Callable, Sequence

import pytest

from gluongraph.artefact.bundle import FLAGS, NATIVE

Ask = Callable[[Sequence[str]], list[str]]
Verify = Callable[[Sequence[tuple[bytes, bytes, bytes]]], list[bool]]
ORDER = 2**252 + 27742317777372353535851937790883648493  # of the base point
P = 2**255 - 19

VECTORS = [  # RFC 8032, 7.1: public key, message, signature
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (  # TEST SHA(abc)
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
        "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
]

TORSION = [  # the points whose order is 1, 2, 4 or 8, encoded
    *("01" + "00" * 31, "ec" + "ff" * 30 + "7f", "00" * 32, "00" * 31 + "80"),
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """The answers of verify.cc to lines."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        pytest.skip("there is no C++ compiler: install g++")
    program = tmp_path_factory.mktemp("ed25519") / "verify"
    sources = [pathlib.Path(__file__).with_name("verify.cc"), NATIVE / "ed25519.cc", NATIVE / "sha512.cc"]
    subprocess.run([compiler, *FLAGS, f"-I{NATIVE}", *sources, "-o", program], check=True)

    def answers(lines: Sequence[str]) -> list[str]:
        done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
        found = done.stdout.split()
        assert len(found) == len(lines)
        return found

    return answers


@pytest.fixture(scope="module")
def verify(ask: Ask) -> Verify:
    """Which of these are a key, a message and a signature that belongs to them?"""

    def verified(rows: Sequence[tuple[bytes, bytes, bytes]]) -> list[bool]:
        return [answer == "1" for answer in ask([f"{k.hex()} {m.hex() or '-'} {s.hex()}" for k, m, s in rows])]

    return verified


def by_cryptography(key: bytes, message: bytes, signature: bytes) -> bool:
    exceptions = pytest.importorskip("cryptography.exceptions")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except exceptions.InvalidSignature:
        return False
    return True


def signed(count: int) -> list[tuple[bytes, bytes, bytes]]:
    """Keys, messages of all lengths, and their signatures."""
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    chance, made = random.Random(0), []
    for length in range(count):
        key, message = Ed25519PrivateKey.from_private_bytes(chance.randbytes(32)), chance.randbytes(length)
        made.append((key.public_key().public_bytes_raw(), message, key.sign(message)))
    return made


def flipped(data: bytes, bit: int) -> bytes:
    made = bytearray(data)
    made[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(made)


def test_sha512(ask: Ask) -> None:
    """Of every length around the ends of blocks, where padding takes one more."""
    texts = [random.Random(length).randbytes(length) for length in range(300)]
    assert ask([text.hex() or "-" for text in texts]) == [hashlib.sha512(text).hexdigest() for text in texts]


def test_vectors_of_the_rfc(verify: Verify) -> None:
    rows = [tuple(map(bytes.fromhex, row)) for row in VECTORS]
    assert verify(rows) == [True] * len(rows)
    others = [(k, m, flipped(s, bit)) for k, m, s in rows for bit in range(0, 512, 7)]
    others += [(k, m + b"\0", s) for k, m, s in rows]
    assert not any(verify(others))


def test_signatures_of_cryptography(verify: Verify) -> None:
    """What it signs is verified; what is changed anywhere is not."""
    rows = signed(100)
    assert all(verify(rows))
    chance = random.Random(1)
    changed = [(flipped(k, chance.randrange(256)), m, s) for k, m, s in rows]
    changed += [(k, m, flipped(s, chance.randrange(512))) for k, m, s in rows]
    changed += [(k, flipped(m, chance.randrange(8 * len(m))), s) for k, m, s in rows[1:]]
    changed += [(k, m, s[32:] + s[:32]) for k, m, s in rows]
    assert not any(verify(changed))


def test_a_number_is_taken_in_one_form(verify: Verify) -> None:
    """S + L says the same as S: who takes both lets anybody make a second signature out of one."""
    rows = signed(20)
    more = [(int.from_bytes(s[32:], "little"), k, m, s) for k, m, s in rows]
    again = [(k, m, s[:32] + (n + ORDER).to_bytes(32, "little")) for n, k, m, s in more if n + ORDER < 2**256]
    assert len(again) == len(rows) and not any(verify(again))


def test_points_of_small_order(verify: Verify) -> None:
    """Keys and R that belong to no secret: the same answers as OpenSSL's, whatever they are."""
    points = [bytes.fromhex(text) for text in TORSION]
    rows = [(key, bytes([n]), r + bytes(32)) for key in points for r in points for n in range(4)]
    found = verify(rows)
    assert found == [by_cryptography(*row) for row in rows] and {*found} == {True, False}


def test_points_that_are_encoded_otherwise(verify: Verify) -> None:
    """y of p or more, and a sign of 0: nothing that RFC 8032 decodes. OpenSSL takes some of them as keys."""
    wrong = [(P + y | sign << 255).to_bytes(32, "little") for y in range(19) for sign in (0, 1)]
    wrong += [(1 | 1 << 255).to_bytes(32, "little"), (P - 1 | 1 << 255).to_bytes(32, "little")]
    rows = [(key, bytes([n]), r + bytes(32)) for key in wrong for r in map(bytes.fromhex, TORSION) for n in range(2)]
    assert not any(verify(rows))


def test_keys_that_are_no_point(verify: Verify) -> None:
    rows = [(random.Random(n).randbytes(32), b"", bytes(64)) for n in range(100)]
    assert not any(verify(rows))
