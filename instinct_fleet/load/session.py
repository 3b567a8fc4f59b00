"""Puts the pieces together for a live endpoint: look at it first, then measure what the plan asks for."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from instinct_fleet.load.client import Client, Endpoint, EndpointError, Record, clock, fetch
from instinct_fleet.load.dataset import Prompt, Ratio, body_of, measured_ratio, words
from instinct_fleet.load.driver import Driver
from instinct_fleet.load.level import Ask, Level
from instinct_fleet.load.metrics import ServerState, parse_metrics
from instinct_fleet.load.search import Outcome

HTTP_OK = 200

Planner = Callable[[Sequence[Level]], Ask | Outcome]
OnLevel = Callable[[Level], None]


@dataclass(frozen=True)
class Preflight:
    """What the endpoint said before any load: the model's name, vLLM's version (None: not said), the prompt ratio."""

    model: str
    version: str | None
    ratio: Ratio
    fixed_length: bool


async def _json(endpoint: Endpoint, path: str) -> tuple[int, object]:
    status, body = await fetch(endpoint, path)
    try:
        return status, json.loads(body)
    except ValueError:
        return status, None


async def find_model(endpoint: Endpoint) -> str:
    """Return the model to ask for: the named one when the server lists it, or the only one when none is named.

    Raises:
        EndpointError: no answer, no access, or no such model.
    """
    status, document = await _json(endpoint, "/v1/models")
    where = f"{endpoint.base_url}: GET /v1/models"
    if status in (401, 403):
        raise EndpointError(f"{where}: HTTP {status}; expected access: give --api-key-file or --api-key-env")
    entries = document.get("data") if isinstance(document, dict) else None
    if status != 200 or not isinstance(entries, list):
        raise EndpointError(f"{where}: HTTP {status} without a list of models; is this an OpenAI-compatible server?")
    names = [str(e.get("id")) for e in entries if isinstance(e, dict)]
    if endpoint.model:
        if names and endpoint.model not in names:
            raise EndpointError(f"{where}: model {endpoint.model!r} is not served; expected one of {', '.join(names)}")
        return endpoint.model
    if len(names) != 1:
        raise EndpointError(f"{where}: {len(names)} models are served ({', '.join(names)}); name one with --model")
    return names[0]


async def server_version(endpoint: Endpoint) -> str | None:
    """Return what ``/version`` says, or None: it is vLLM's, and a gateway need not pass it on."""
    try:
        status, document = await _json(endpoint, "/version")
    except EndpointError:
        return None
    version = document.get("version") if status == 200 and isinstance(document, dict) else None
    return str(version) if version else None


async def require_idle(endpoint: Endpoint, seconds: float) -> None:
    """Watch the server's own counters for some seconds and refuse when anybody else uses it.

    Raises:
        EndpointError: requests run, or some came meanwhile, or the server does not say.
    """
    first: float | None = None
    deadline = clock() + seconds
    while True:
        status, body = await fetch(endpoint, "/metrics")
        state = parse_metrics(body.decode("utf-8", "replace")) if status == HTTP_OK else ServerState()
        if state.requests is None or state.queue_count is None:
            raise EndpointError(
                f"{endpoint.base_url}: /metrics does not say how many requests run (HTTP {status}), expected vLLM's "
                "counters; without them nobody can tell whether it takes traffic"
            )
        first = state.queue_count if first is None else first
        came = state.queue_count - first
        if state.requests or came:
            raise EndpointError(
                f"{endpoint.base_url}: it takes traffic: {state.requests:.0f} requests run or wait and {came:.0f} came "
                f"within {seconds:g} s, expected none; drain it first"
            )
        if clock() >= deadline:
            return
        await asyncio.sleep(0.25)


async def preflight(endpoint: Endpoint, *, fixed_length: bool, timeout: float = 120.0) -> Preflight:
    """Look at an endpoint and ask two small questions of known length, before any load.

    ``endpoint.model`` must be served. vLLM's ``ignore_eos`` is dropped when the server refuses it.

    Raises:
        EndpointError: a question was not answered as a complete stream with its usage; the text says why.
    """
    rng = random.Random(4)  # noqa: S311 - reproducible text
    client = Client(endpoint, on_first=lambda _r, _t: None, on_chunk=lambda _t, _g: None, timeout=timeout)
    samples: list[tuple[int, int]] = []
    try:
        for count in (24, 120):
            while True:
                record = Record(clock())
                prompt = Prompt(max_tokens=4, text=words(count, rng))
                body = body_of(prompt, model=endpoint.model, api=endpoint.api, fixed_length=fixed_length)
                await client.request(body, record)
                if record.status in (400, 422) and fixed_length and "ignore_eos" in str(record.error):
                    fixed_length = False
                    continue
                break
            if not record.ok:
                raise EndpointError(
                    f"{endpoint.base_url}: POST {endpoint.path}: {record.error}; expected a complete stream"
                )
            if record.output_tokens is None:
                raise EndpointError(
                    f"{endpoint.base_url}: POST {endpoint.path}: the stream carries no usage; expected it with "
                    "stream_options.include_usage, since chunks are not tokens"
                )
            if record.prompt_tokens:
                samples.append((count, record.prompt_tokens))
    finally:
        client.close()
    return Preflight(endpoint.model, await server_version(endpoint), measured_ratio(samples), fixed_length)


async def sweep(
    driver: Driver, planner: Planner, *, on_level: OnLevel, budget_seconds: float
) -> tuple[Ask | Outcome, tuple[Level, ...], bool]:
    """Measure what ``planner`` asks for until it has an outcome; return (last plan, levels, interrupted).

    ``on_level`` gets each level as soon as it is known, so that an interrupt or a crash loses nothing but the level
    under way.
    """
    history: tuple[Level, ...] = ()
    deadline = clock() + budget_seconds
    step = planner(history)
    interrupted = False
    try:
        while isinstance(step, Ask):
            level = await driver.measure(step, deadline=deadline)
            history = (*history, level)
            on_level(level)
            step = planner(history)
    except asyncio.CancelledError:
        interrupted = True
    finally:
        await driver.close()
    return step, history, interrupted


async def interleave(
    drivers: tuple[Driver, Driver], ask: Ask, *, rounds: int, on_level: Callable[[int, Level], None], budget: float
) -> tuple[list[Level], list[Level], bool]:
    """Measure one concurrency on two endpoints in turns, ABBA, so that a drift hits both; return both lists.

    While one is measured the other is idle: they may share a machine.
    """
    sides: tuple[list[Level], list[Level]] = ([], [])
    deadline = clock() + budget
    interrupted = False
    try:
        for number in range(rounds):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                level = await drivers[side].measure(ask, deadline=deadline)
                await drivers[side].pause()
                on_level(side, level)
                sides[side].append(level)
            if clock() >= deadline:
                break
    except asyncio.CancelledError:
        interrupted = True
    finally:
        for driver in drivers:
            await driver.close()
    return sides[0], sides[1], interrupted
