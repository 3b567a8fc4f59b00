"""What is asked: random text of a wanted length, a ShareGPT file, own JSONL, or groups with a shared prefix.

A dataset is an endless iterator of :class:`Prompt`. The order is the same for the same seed, so that two runs ask
the same questions.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

#: Short, frequent words: most tokenizers spend one token on each. The real ratio is measured, never assumed.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue side "
    "kind head house service friend father power hour game line end member law car city name team minute idea "
    "body back parent face other level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education"
)
WORDS = tuple(_TEXT.split())


class DatasetError(ValueError):
    """A dataset cannot be used; the text names the file, the entry, what was seen and what was expected."""


@dataclass(frozen=True)
class Prompt:
    """One question: plain ``text`` or chat ``messages``, and how many tokens the answer may have."""

    max_tokens: int
    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Ratio:
    """Prompt tokens of a text of n words, as the server counted them: ``base + per_word * n``."""

    per_word: float = 1.0
    base: float = 0.0

    def words(self, tokens: int) -> int:
        """Return how many words give about ``tokens`` prompt tokens; at least one."""
        return max(1, round((tokens - self.base) / self.per_word))


def measured_ratio(samples: Sequence[tuple[int, int]]) -> Ratio:
    """Fit :class:`Ratio` to (words, tokens) pairs of two lengths; the identity when they make no sense."""
    if len(samples) < 2:
        return Ratio()
    (n1, t1), (n2, t2) = min(samples), max(samples)
    if n1 == n2 or t2 <= t1:
        return Ratio()
    per_word = (t2 - t1) / (n2 - n1)
    return Ratio(per_word, t1 - per_word * n1)


class Tokenizer(Protocol):
    """The part of ``tokenizers.Tokenizer`` that is used."""

    def encode(self, text: str) -> Any:
        """Return an object with ``ids``."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids."""
        ...

    def get_vocab_size(self) -> int:
        """Return the number of tokens."""
        ...


def load_tokenizer(model_dir: Path) -> Tokenizer | None:
    """Load ``tokenizer.json`` of a model directory, or None when the optional ``tokenizers`` package is not there.

    Raises:
        DatasetError: the file is missing or is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer as Hub  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
    except ImportError:
        return None
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise DatasetError(f"tokenizer: {path} does not exist; expected a model directory with tokenizer.json")
    try:
        tokenizer: Tokenizer = Hub.from_file(str(path))
    except Exception as exc:  # the package raises plain Exception
        raise DatasetError(f"tokenizer: {path}: {exc}") from exc
    return tokenizer


def words(count: int, rng: random.Random) -> str:
    """Return ``count`` random words."""
    return " ".join(rng.choices(WORDS, k=max(1, count)))


def text_of(tokens: int, rng: random.Random, *, ratio: Ratio, tokenizer: Tokenizer | None) -> str:
    """Return random text of about ``tokens`` prompt tokens: exact with a tokenizer, by the measured ratio without."""
    if tokenizer is None:
        return words(ratio.words(tokens), rng)
    wanted = max(1, round(tokens - ratio.base))
    text = words(wanted * 2, rng)
    ids = tokenizer.encode(text).ids
    while len(ids) < wanted:
        text = f"{text} {text}"
        ids = tokenizer.encode(text).ids
    return tokenizer.decode(list(ids[:wanted]))


def around(mean: int, spread: float, rng: random.Random) -> int:
    """Return a length drawn evenly from ``mean`` -/+ ``spread`` (a share); at least 1."""
    return max(1, round(rng.uniform(mean * (1 - spread), mean * (1 + spread))))


def random_prompts(
    *,
    input_len: int,
    output_len: int,
    spread: float = 0.0,
    seed: int = 0,
    ratio: Ratio | None = None,
    tokenizer: Tokenizer | None = None,
) -> Iterator[Prompt]:
    """Yield prompts of random words; lengths in tokens, drawn evenly from the mean -/+ ``spread``."""
    rng = random.Random(seed)  # noqa: S311 - reproducible load, not a secret
    while True:
        length = around(input_len, spread, rng)
        yield Prompt(
            max_tokens=around(output_len, spread, rng),
            text=text_of(length, rng, ratio=ratio or Ratio(), tokenizer=tokenizer),
        )


def shared_prefix_prompts(
    *,
    prefix_len: int,
    groups: int,
    input_len: int,
    output_len: int,
    spread: float = 0.0,
    seed: int = 0,
    ratio: Ratio | None = None,
    tokenizer: Tokenizer | None = None,
) -> Iterator[Prompt]:
    """Yield prompts that begin with one of ``groups`` long prefixes: what a prefix cache is for."""
    rng = random.Random(seed)  # noqa: S311 - as above
    known = ratio or Ratio()
    prefixes = [text_of(prefix_len, rng, ratio=known, tokenizer=tokenizer) for _ in range(max(1, groups))]
    suffix = Ratio(known.per_word, 0.0)
    while True:
        tail = text_of(around(input_len, spread, rng), rng, ratio=suffix, tokenizer=tokenizer)
        yield Prompt(max_tokens=around(output_len, spread, rng), text=f"{rng.choice(prefixes)} {tail}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise DatasetError(f"dataset: {path}: {exc}") from exc


def sharegpt_prompts(
    path: Path, *, output_len: int | None, seed: int = 0, ratio: Ratio | None = None
) -> Iterator[Prompt]:
    """Yield the first question of each conversation of a ShareGPT file, shuffled by the seed, again and again.

    The answer may be as long as the recorded one (by the measured ratio), or ``output_len`` tokens when given.

    Raises:
        DatasetError: the file holds no conversation with a question and an answer.
    """
    try:
        entries = json.loads(_read(path))
    except ValueError as exc:
        raise DatasetError(f"dataset: {path}: {exc}; expected a JSON list of conversations") from exc
    per_word = (ratio or Ratio()).per_word
    prompts = []
    for entry in entries if isinstance(entries, list) else []:
        turns = entry.get("conversations") or entry.get("conversation") if isinstance(entry, dict) else None
        texts = [t.get("value") or t.get("content") for t in turns if isinstance(t, dict)] if turns else []
        if len(texts) < 2 or not texts[0] or not texts[1]:
            continue
        recorded = max(4, round(len(str(texts[1]).split()) * per_word))
        prompts.append(Prompt(max_tokens=output_len or recorded, text=str(texts[0])))
    if not prompts:
        raise DatasetError(
            f"dataset: {path}: no conversation with two turns; expected "
            '[{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}, ...]'
        )
    return _endless(prompts, seed)


def custom_prompts(path: Path, *, output_len: int, seed: int = 0) -> Iterator[Prompt]:
    """Yield the entries of a JSONL file, shuffled by the seed, again and again.

    A line is ``{"prompt": "..."}`` or ``{"messages": [...]}``, with an optional ``output_tokens`` (or ``max_tokens``).

    Raises:
        DatasetError: a line is unusable; the text names the line.
    """
    prompts = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"dataset: {path}: line {number}"
        try:
            entry = json.loads(line)
        except ValueError as exc:
            raise DatasetError(f"{where}: {exc}; expected one JSON object a line") from exc
        text = entry.get("prompt") if isinstance(entry, dict) else None
        messages = entry.get("messages") if isinstance(entry, dict) else None
        if not (isinstance(text, str) and text) and not (isinstance(messages, list) and messages):
            raise DatasetError(f'{where}: got {line[:80]}, expected {{"prompt": "..."}} or {{"messages": [...]}}')
        limit = entry.get("output_tokens", entry.get("max_tokens", output_len))
        if not isinstance(limit, int) or limit < 1:
            raise DatasetError(f"{where}: output_tokens is {limit!r}, expected a number of tokens from 1 on")
        prompts.append(Prompt(max_tokens=limit, text=text or "", messages=tuple(messages or ())))
    if not prompts:
        raise DatasetError(f"dataset: {path}: no entries; expected one JSON object a line")
    return _endless(prompts, seed)


def _endless(prompts: list[Prompt], seed: int) -> Iterator[Prompt]:
    random.Random(seed).shuffle(prompts)  # noqa: S311 - as above
    return itertools.cycle(prompts)


def body_of(prompt: Prompt, *, model: str, api: str, fixed_length: bool, temperature: float | None = 0.0) -> bytes:
    """Return the JSON body of a streaming request that reports its usage.

    ``fixed_length`` adds vLLM's ``ignore_eos`` so that an answer has exactly the asked number of tokens.
    """
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": prompt.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if temperature is not None:
        # Left out, the server takes the model's own sampling settings: answers of another length each run.
        body["temperature"] = temperature
    if fixed_length:
        body["ignore_eos"] = True
    if api == "chat":
        body["messages"] = list(prompt.messages) or [{"role": "user", "content": prompt.text}]
    else:
        body["prompt"] = prompt.text or "\n".join(str(m.get("content", "")) for m in prompt.messages)
    return json.dumps(body, separators=(",", ":")).encode()
