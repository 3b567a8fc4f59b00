"""Say in words what a strict model refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

#: What pydantic puts into a place for each type that a field may have; the user wrote no such key.
_BRANCH = re.compile(r"constrained-\w+|literal\[.*\]")


def plain(value: Any) -> Any:
    """Return plain containers with keys of text, for a model to read.

    Ansible's own hold their members unresolved until they are asked for one by one, and pydantic would not ask.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def nearest(word: str, known: Iterable[object]) -> str:
    """Return `` (did you mean 'x'?)`` for the known word that is closest, or nothing."""
    close = difflib.get_close_matches(word, [str(k) for k in known], n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def explain(exc: ValidationError, fields: Iterable[str]) -> str:
    """Say in one line what pydantic refused: where, what was seen, what is allowed."""
    known = list(fields)
    parts: list[str] = []
    for error in exc.errors():
        where = ".".join(str(p) for p in error["loc"] if not _BRANCH.fullmatch(str(p)))
        if error["type"] == "extra_forbidden":
            text = f"unknown key {where!r}{nearest(where, known)}"
        elif error["type"] == "missing":
            text = f"{where} is missing"
        elif error["type"] == "value_error":
            reason = str(error["ctx"]["error"])
            text = f"{where}: {reason}" if where else reason
        else:
            text = f"{where} is {error.get('input')!r}: {error['msg'][0].lower()}{error['msg'][1:]}"
        parts.append(text)
    return "; ".join(dict.fromkeys(parts))
