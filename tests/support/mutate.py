"""Damage to the output of tools, from a seeded source, for tests that nothing damaged is taken for healthy."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

NOISE = (
    "WARNING: something happened",
    "get_link_weight_topology, Not supported on the given system",
    "Traceback (most recent call last):",
    "ERROR: GPU[3]\t: Cannot read Link Weight: Not supported on this machine",
    "======= A title nobody knows =======",
    "GPU3   15           15",
    "{",
    "]",
    "\x1b[31mred\x1b[0m",
    "...",
)
#: Rows of the matrices of both tools.
ROW = re.compile(r"^\s*(GPU\d+|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) +\S")
CELL_KEYS = ("weight", "link_status", "link_type", "num_hops", "bandwidth")


def truncate(text: str, random_: random.Random) -> str:
    """Cut the text somewhere."""
    return text[: random_.randrange(len(text) + 1)]


def delete_lines(text: str, random_: random.Random) -> str:
    """Delete one to five lines."""
    lines = text.split("\n")
    for _ in range(random_.randint(1, 5)):
        if lines:
            del lines[random_.randrange(len(lines))]
    return "\n".join(lines)


def swap_lines(text: str, random_: random.Random) -> str:
    """Swap two lines."""
    lines = text.split("\n")
    a, b = random_.randrange(len(lines)), random_.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def swap_cells(text: str, random_: random.Random) -> str:
    """Swap two words."""
    parts = re.split(r"(\s+)", text)
    a, b = random_.randrange(len(parts)), random_.randrange(len(parts))
    parts[a], parts[b] = parts[b], parts[a]
    return "".join(parts)


def insert_noise(text: str, random_: random.Random) -> str:
    """Insert a remark between two lines."""
    lines = text.split("\n")
    lines.insert(random_.randrange(len(lines) + 1), random_.choice(NOISE))
    return "\n".join(lines)


def flip_bytes(text: str, random_: random.Random) -> str:
    """Change one to four characters."""
    characters = list(text)
    for _ in range(random_.randint(1, 4)):
        if characters:
            characters[random_.randrange(len(characters))] = chr(random_.randrange(0, 256))
    return "".join(characters)


def repeat_part(text: str, random_: random.Random) -> str:
    """Print a part of the text twice."""
    a, b = sorted((random_.randrange(len(text) + 1), random_.randrange(len(text) + 1)))
    return text[:b] + text[a:]


MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    truncate,
    delete_lines,
    swap_lines,
    swap_cells,
    insert_noise,
    flip_bytes,
    repeat_part,
)


def mutate(text: str, random_: random.Random) -> str:
    """Damage the text in one to three ways."""
    for _ in range(random_.choice((1, 1, 1, 2, 3))):
        text = random_.choice(MUTATIONS)(text, random_)
    return text


def remove_cell(text: str, random_: random.Random) -> str:
    """Take one cell out of a matrix: a word of a row, an entry of a list, a key of a link."""
    if text.lstrip().startswith(("[", "{")):
        document = json.loads(text)
        _remove_json_cell(document, random_)
        return json.dumps(document)
    lines = text.split("\n")
    rows = [n for n, line in enumerate(lines) if ROW.match(line) or re.match(r"^    GPU_\d+: ", line)]
    number = random_.choice(rows)
    if lines[number].startswith("    GPU_"):
        del lines[number]
        return "\n".join(lines)
    words = [m.span() for m in re.finditer(r"\S+", lines[number])][1:]
    start, end = random_.choice(words)
    blank = " " * (end - start) if random_.random() < 0.5 else ""
    lines[number] = lines[number][:start] + blank + lines[number][end:]
    return "\n".join(lines)


def _remove_json_cell(document: Any, random_: random.Random) -> None:
    if isinstance(document, dict):
        del document["system"][random_.choice(sorted(document["system"]))]
        return
    entry = random_.choice(document)
    if "links" not in entry:
        row = entry[random_.choice(sorted(k for k in entry if isinstance(entry[k], dict)))]
        del row[random_.choice(sorted(row))]
    elif random_.random() < 0.3:
        del entry["links"][random_.randrange(len(entry["links"]))]
    else:
        del random_.choice(entry["links"])[random_.choice(CELL_KEYS)]
