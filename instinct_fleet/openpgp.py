"""Read which keys an OpenPGP key file holds. Enough of RFC 4880 and RFC 9580 to compare fingerprints, and no more."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_ARMOR = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?P<headers>(?:[^\n]*: [^\n]*\n)*)\s*\n?(?P<body>.*?)"
    r"-----END PGP PUBLIC KEY BLOCK-----",
    re.S,
)
_PUBLIC_KEY = 6


def _dearmor(text: str) -> bytes:
    """Return the packets of every armoured block of a text, one after the other."""
    data = b""
    for match in _ARMOR.finditer(text):
        lines = [line.strip() for line in match["body"].splitlines()]
        # The last line may be the checksum, which the signature of the repository makes superfluous.
        joined = "".join(line for line in lines if line and not line.startswith("="))
        try:
            data += base64.b64decode(joined, validate=True)
        except binascii.Error as exc:
            raise ValueError(f"a key block is not base64: {exc}") from exc
    return data


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return (body length, offset of the body) of a new-format packet whose length begins at ``at``."""
    first = data[at]
    if first < 192:
        return first, at + 1
    if first < 224:
        return ((first - 192) << 8) + data[at + 1] + 192, at + 2
    if first == 255:
        return int.from_bytes(data[at + 1 : at + 5], "big"), at + 5
    raise ValueError("a packet of unknown length, which no key has")


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (tag, body) of each packet."""
    at = 0
    try:
        while at < len(data):
            head = data[at]
            if not head & 0x80:
                raise ValueError("not an OpenPGP packet")
            if head & 0x40:
                tag = head & 0x3F
                size, start = _length(data, at + 1)
            else:
                tag = (head >> 2) & 0x0F
                width = {0: 1, 1: 2, 2: 4}.get(head & 3)
                if width is None:
                    raise ValueError("a packet of unknown length, which no key has")
                size, start = int.from_bytes(data[at + 1 : at + 1 + width], "big"), at + 1 + width
            body = data[start : start + size]
            if len(body) != size:
                raise ValueError("the key file is cut off")
            yield tag, body
            at = start + size
    except IndexError:
        raise ValueError("the key file is cut off") from None


def fingerprints(text: str) -> list[str]:
    """Return the fingerprints of all primary keys of an armoured key file, upper case, in the file's order.

    Raises:
        ValueError: it is not an armoured key file, or it is damaged.
    """
    if "-----BEGIN PGP PUBLIC KEY BLOCK-----" not in text:
        raise ValueError(f"no PGP public key block; it begins with {text.strip()[:40]!r}")
    found = []
    for tag, body in _packets(_dearmor(text)):
        if tag != _PUBLIC_KEY or not body:
            continue
        if body[0] == 4:
            # SHA-1 is what a version 4 fingerprint is made of.
            found.append(hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper())  # noqa: S324
        elif body[0] == 6:
            found.append(hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper())
        else:
            raise ValueError(f"a key of OpenPGP version {body[0]}, expected 4 or 6")
    if not found:
        raise ValueError("no public key in it")
    return found


def key_problem(text: str | None, fingerprint: str) -> str | None:
    """Say why a key file may not be trusted as the one key with this fingerprint, or return None.

    A file with another key beside the right one is refused: `Signed-By` would trust both.
    """
    wanted = re.sub(r"\s", "", fingerprint).upper()
    if text is None:
        return f"no key, expected {wanted}"
    try:
        found = fingerprints(text)
    except ValueError as exc:
        return f"{exc}, expected the key {wanted}"
    if found != [wanted]:
        return f"key {', '.join(found)}, expected {wanted} and no other"
    return None
