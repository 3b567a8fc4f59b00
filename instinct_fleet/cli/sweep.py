"""``instinct-fleet sweep``: find the knee of a live endpoint, or compare two."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from instinct_fleet import __version__
from instinct_fleet.advice import NAMES, Served, advise, served_of
from instinct_fleet.capacity import HEADROOM, capacity_key, read_results
from instinct_fleet.cli import DONE, FINDINGS, UsageError
from instinct_fleet.cli.knee import load, points_table, positive, share
from instinct_fleet.load import driver as driving
from instinct_fleet.load.client import Endpoint, EndpointError, clock
from instinct_fleet.load.compare import Difference, compare_points, difference, pairs_of
from instinct_fleet.load.dataset import (
    DatasetError,
    Prompt,
    Ratio,
    body_of,
    custom_prompts,
    load_tokenizer,
    random_prompts,
    shared_prefix_prompts,
    sharegpt_prompts,
)
from instinct_fleet.load.fits import guides
from instinct_fleet.load.level import Ask, Level, LevelRun, Limits
from instinct_fleet.load.results import (
    capacity_of,
    estimate_to_json,
    level_to_json,
    open_loop_points,
    rules,
)
from instinct_fleet.load.search import Outcome, SearchConfig, conclude, ladder, plan, pooled, pooled_ttft
from instinct_fleet.load.session import Planner, Preflight, find_model, interleave, preflight, require_idle, sweep
from instinct_fleet.model import to_json

INTERRUPTED = 130


def whole(text: str) -> int:
    """Read a whole number from 1 on for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from 1 on")
    return value


def whole_list(text: str) -> list[int]:
    """Read ``10,20,50`` for argparse, in ascending order without repeats."""
    return sorted({whole(part) for part in text.split(",")})


def rate_list(text: str) -> list[float]:
    """Read ``0.5,1,2`` for argparse."""
    return [positive(part) for part in text.split(",")]


def assignment(text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE`` for argparse."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected NAME=VALUE")
    return name, value


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "sweep",
        help="find the knee of a live endpoint",
        description="Load a live OpenAI-compatible endpoint, step by step, and find the concurrency at its knee. The "
        "endpoint must carry no other traffic; it is never started, stopped or reconfigured.",
    )
    parser.add_argument("--base-url", metavar="URL", help="http(s)://HOST:PORT, without or with /v1")
    parser.add_argument("--model", default="", help="name the server knows (default: the only one it serves)")
    parser.add_argument("--api", choices=("completions", "chat"), default="completions")
    goal = parser.add_argument_group("what is searched")
    goal.add_argument("--ttft-p99-ms", type=positive, metavar="MS", help="TTFT objective (default: none)")
    goal.add_argument("--attainment", type=share, default=0.99, help="share that must meet it (default: %(default)s)")
    goal.add_argument("--max-concurrency", type=whole, default=512, metavar="N", help="default: %(default)s")
    goal.add_argument("--headroom", type=share, default=HEADROOM, help="taken off the knee (default: %(default)s)")
    goal.add_argument("--budget-seconds", type=positive, default=600.0, metavar="S", help="default: %(default)s")
    goal.add_argument("--budget-requests", type=whole, default=200_000, metavar="N", help="default: %(default)s")
    goal.add_argument("--level-seconds", type=positive, default=30.0, metavar="S", help="longest level (%(default)s)")
    goal.add_argument("--ladder", type=whole_list, metavar="10,20,50", help="fixed steps instead of the search")
    goal.add_argument("--request-rate", type=rate_list, metavar="1,2,5", help="open loop: Poisson arrivals/s, no knee")
    goal.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="two result files or directories, or two base URLs"
    )
    goal.add_argument("--concurrency", type=whole, metavar="N", help="of --compare on two URLs")
    goal.add_argument("--rounds", type=whole, default=6, help="of --compare on two URLs (default: %(default)s)")
    data = parser.add_argument_group("what is asked")
    data.add_argument("--dataset", choices=("random", "sharegpt", "custom", "shared-prefix"), default="random")
    data.add_argument("--dataset-path", type=Path, metavar="FILE", help="for sharegpt (JSON) and custom (JSONL)")
    data.add_argument("--input-len", type=whole, default=512, metavar="N", help="prompt tokens (%(default)s)")
    data.add_argument("--output-len", type=whole, metavar="N", help="answer tokens (128; sharegpt: as recorded)")
    data.add_argument("--length-spread", type=share, default=0.2, help="lengths vary by this share (%(default)s)")
    data.add_argument("--prefix-len", type=whole, default=1024, metavar="N", help="shared-prefix (%(default)s)")
    data.add_argument("--prefix-groups", type=whole, default=8, metavar="N", help="shared-prefix (%(default)s)")
    data.add_argument("--tokenizer", type=Path, metavar="DIR", help="model directory, for exact prompt lengths")
    data.add_argument("--natural-end", action="store_true", help="let answers end by themselves (no ignore_eos)")
    data.add_argument("--seed", type=int, default=0)
    access = parser.add_argument_group("access")
    access.add_argument("--api-key-file", type=Path, metavar="FILE", help="file that holds the API key")
    access.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    access.add_argument("--ca-file", metavar="FILE", help="certificates to trust, PEM")
    access.add_argument("--insecure", action="store_true", help="do not check the server's certificate")
    access.add_argument("--request-timeout", type=positive, default=600.0, metavar="S", help="default: %(default)s")
    trust = parser.add_argument_group("when not to believe a level")
    trust.add_argument("--max-lag-ms", type=positive, default=5.0, metavar="MS", help="event loop, p99 (%(default)s)")
    trust.add_argument("--no-server-metrics", action="store_true", help="do not compare with /metrics")
    trust.add_argument(
        "--require-idle", type=positive, metavar="S", help="refuse when the server takes other traffic within S seconds"
    )
    tune = parser.add_argument_group("advice")
    tune.add_argument(
        "--served",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"what the server runs with ({', '.join(NAMES)}): the report then says what to change, and why",
    )
    tune.add_argument("--gpu-metrics-url", metavar="URL", help="AMD's Device Metrics Exporter of the node")
    out = parser.add_argument_group("results")
    out.add_argument("--output-dir", type=Path, metavar="DIR", help="default: artifacts/sweep-<date>")
    out.add_argument("--no-report", action="store_true", help="write no report.html, which needs matplotlib")
    out.add_argument("--instance", default="", help="name of the instance, for the record")
    out.add_argument(
        "--provenance",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what was measured (model revision, arguments, TP, topology): goes into the record's key",
    )
    out.add_argument("--simulated", action="store_true", help="say in every result that no real hardware ran")
    out.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


# ---- input --------------------------------------------------------------------------------------------------------


def _api_key(args: argparse.Namespace) -> str | None:
    if args.api_key_file and args.api_key_env:
        raise UsageError("--api-key-file and --api-key-env: got both, expected one")
    if args.api_key_file:
        try:
            key = args.api_key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise UsageError(f"--api-key-file: {exc}") from exc
        source = f"--api-key-file {args.api_key_file}"
    elif args.api_key_env:
        key = os.environ.get(args.api_key_env, "").strip()
        source = f"--api-key-env {args.api_key_env}"
    else:
        return None
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"{source}: got {'nothing' if not key else 'more than one line'}, expected one API key")
    return str(key)


def _endpoint(args: argparse.Namespace, url: str) -> Endpoint:
    if "@" in url.split("//", 1)[-1].split("/", 1)[0]:
        raise UsageError("base URL: holds a user name or password; expected none: give --api-key-file or --api-key-env")
    key = _api_key(args)
    try:
        endpoint = Endpoint(
            base_url=url,
            model=args.model,
            api=args.api,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            ca_file=args.ca_file,
            insecure=args.insecure,
        )
        endpoint.context()
    except EndpointError as exc:
        raise UsageError(str(exc)) from exc
    return endpoint


def _prompts(args: argparse.Namespace, ratio: Ratio, warn: Callable[[str], None]) -> Iterator[Prompt]:
    tokenizer = None
    if args.tokenizer:
        tokenizer = load_tokenizer(args.tokenizer)
        if tokenizer is None:
            warn("the tokenizers package is not installed: prompt lengths follow the measured words-to-tokens ratio")
    if args.dataset in ("sharegpt", "custom") and args.dataset_path is None:
        raise UsageError(f"--dataset {args.dataset}: no file given; expected --dataset-path FILE")
    output_len = args.output_len or 128
    if args.dataset == "sharegpt":
        return sharegpt_prompts(args.dataset_path, output_len=args.output_len, seed=args.seed, ratio=ratio)
    if args.dataset == "custom":
        return custom_prompts(args.dataset_path, output_len=output_len, seed=args.seed)
    if args.dataset == "shared-prefix":
        return shared_prefix_prompts(
            prefix_len=args.prefix_len,
            groups=args.prefix_groups,
            input_len=args.input_len,
            output_len=output_len,
            spread=args.length_spread,
            seed=args.seed,
            ratio=ratio,
            tokenizer=tokenizer,
        )
    return random_prompts(
        input_len=args.input_len,
        output_len=output_len,
        spread=args.length_spread,
        seed=args.seed,
        ratio=ratio,
        tokenizer=tokenizer,
    )


def _search_config(args: argparse.Namespace) -> SearchConfig:
    return SearchConfig(
        max_concurrency=max(args.ladder) if args.ladder else args.max_concurrency,
        objective=args.ttft_p99_ms / 1e3 if args.ttft_p99_ms else None,
        attainment=args.attainment,
        headroom=args.headroom,
        budget_seconds=args.budget_seconds,
        budget_requests=args.budget_requests,
        max_level_seconds=args.level_seconds,
    )


# ---- progress -----------------------------------------------------------------------------------------------------


class Progress:
    """Live on a terminal; one line a level where there is none. Everything goes to stderr."""

    def __init__(self, budget: float) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._budget = budget
        self._started = clock()
        self._levels: list[Level] = []
        self._now = Text("looking at the endpoint")
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=4,
            transient=True,
            auto_refresh=False,
        )

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for level in self._levels[-12:]:
            table.add_row(*self._cells(level))
        table.add_row(self._now)
        return table

    @staticmethod
    def _cells(level: Level, label: str = "") -> tuple[str, ...]:
        if level.void:
            return f"{label}{level.concurrency:>5}", level.purpose, "void: " + "; ".join(level.void)
        spread = f"± {level.throughput.relative:.1%}" if level.throughput.relative < 10 else ""
        ttft = f"TTFT p99 {level.ttft_p99 * 1e3:.0f} ms" if level.ttft_p99 is not None else ""
        return (
            f"{label}{level.concurrency:>5}",
            level.purpose,
            f"{level.throughput.value:8.0f} tokens/s {spread}",
            ttft,
            f"{level.requests} requests in {level.window:.1f} s",
            level.stop,
        )

    def running(self, run: LevelRun) -> None:
        """Show the level under way."""
        if not self._console.is_terminal:
            return
        sample = run.sample()
        elapsed = clock() - self._started
        stage = f"measuring {sample.throughput.value:.0f} tokens/s" if run.measuring else "settling"
        what = f"rate {run.ask.rate:g}/s" if run.ask.rate else f"concurrency {run.ask.concurrency}"
        self._now = Text(
            f"{run.ask.purpose}: {what}, {stage}, {sample.requests} requests, "
            f"{elapsed:.0f} s, at most {max(0.0, self._budget - elapsed):.0f} s left",
            style="bold",
        )
        self._live.refresh()

    def level(self, level: Level, label: str = "") -> None:
        """Show a finished level."""
        self._levels.append(level)
        if not self._console.is_terminal:
            self._console.print("  ".join(self._cells(level, label)), soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True)


# ---- the search ---------------------------------------------------------------------------------------------------


def _planner(args: argparse.Namespace, config: SearchConfig) -> Planner:
    if args.ladder:
        return lambda history: ladder(args.ladder, history, config)
    if args.request_rate:
        return lambda history: _rates(args, history, config)
    return lambda history: plan(history, config)


def _rates(args: argparse.Namespace, history: Sequence[Level], config: SearchConfig) -> Ask | Outcome:
    if len(history) == len(args.request_rate):
        return Outcome("inconclusive", ("open loop: arrival rates carry no knee",))
    rate = args.request_rate[len(history)]
    return Ask(
        concurrency=max(1, round(rate)),
        purpose="rate",
        rate=rate,
        objective=config.objective,
        attainment=config.attainment,
        precision=0.02,
        min_seconds=min(10.0, args.level_seconds),
        max_seconds=args.level_seconds,
    )


def run(args: argparse.Namespace) -> int:
    """Run a sweep or a comparison; 0 with a verdict, 1 without one, 130 when interrupted (the levels are kept)."""
    if sum(bool(mode) for mode in (args.ladder, args.request_rate, args.compare)) > 1:
        raise UsageError("--ladder, --request-rate and --compare: got several, expected at most one")
    if args.compare:
        return _compare(args)
    if not args.base_url:
        raise UsageError(
            "--base-url: not given; expected the URL of a live endpoint, for example http://127.0.0.1:8000"
        )
    endpoint = _endpoint(args, args.base_url)
    config = _search_config(args)
    served = _served(args)
    now = datetime.datetime.now(datetime.UTC)
    directory = args.output_dir or Path("artifacts") / f"sweep-{now:%Y%m%d-%H%M%S}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        levels = directory / "levels.jsonl"
        levels.write_text("", encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"--output-dir: {exc}; expected a directory that can be written") from exc
    with Progress(config.budget_seconds) as progress:

        def keep(level: Level) -> None:
            progress.level(level)
            try:
                with levels.open("a", encoding="utf-8") as raw:
                    raw.write(json.dumps(level_to_json(level)) + "\n")
            except OSError as exc:
                raise _unwritten(levels, exc) from exc

        try:
            found, driver_note, (step, history, interrupted) = driving.run(
                _search(args, endpoint, config, progress=progress, keep=keep)
            )
        except (EndpointError, DatasetError) as exc:
            raise UsageError(str(exc)) from exc
    outcome = (
        step if isinstance(step, Outcome) and not interrupted else conclude(history, config, stopped="interrupted")
    )
    document = _document(
        args, config, found, outcome, history, now=now, metrics_note=driver_note, interrupted=interrupted, served=served
    )
    try:
        _write(directory, document, report=not args.no_report)
    finally:
        _show(args, document, directory)  # a full disk must not cost what took minutes to measure
    if interrupted:
        return INTERRUPTED
    return DONE if outcome.knee is not None or args.request_rate else FINDINGS


async def _search(
    args: argparse.Namespace,
    endpoint: Endpoint,
    config: SearchConfig,
    *,
    progress: Progress,
    keep: Callable[[Level], None],
) -> tuple[Preflight, str, tuple[Ask | Outcome, tuple[Level, ...], bool]]:
    _stop_on_sigterm()
    endpoint = dataclasses.replace(endpoint, model=await find_model(endpoint))
    if args.require_idle:
        await require_idle(endpoint, args.require_idle)
    found = await preflight(endpoint, fixed_length=not args.natural_end, timeout=args.request_timeout)
    driver = _driver(args, endpoint, found, progress)
    result = await sweep(driver, _planner(args, config), on_level=keep, budget_seconds=config.budget_seconds)
    return found, driver.metrics_note, result


def _stop_on_sigterm() -> None:
    """End on SIGTERM as on Ctrl-C: the levels so far are kept and no request is left behind."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _gpu_metrics(args: argparse.Namespace) -> Endpoint | None:
    if not args.gpu_metrics_url:
        return None
    try:
        # The exporter gets no key: it is another service.
        return Endpoint(base_url=args.gpu_metrics_url.removesuffix("/metrics"), model="")
    except EndpointError as exc:
        raise UsageError(f"--gpu-metrics-url: {exc}") from exc


def _driver(args: argparse.Namespace, endpoint: Endpoint, found: Preflight, progress: Progress) -> driving.Driver:
    fixed = found.fixed_length and args.dataset in ("random", "shared-prefix")
    bodies = (
        body_of(prompt, model=endpoint.model, api=endpoint.api, fixed_length=fixed)
        for prompt in _prompts(args, found.ratio, progress.say)
    )
    return driving.Driver(
        endpoint,
        bodies,
        limits=Limits(max_lag=args.max_lag_ms / 1e3),
        timeout=args.request_timeout,
        max_requests=args.budget_requests,
        metrics=not args.no_server_metrics,
        gpu_metrics=_gpu_metrics(args),
        on_progress=progress.running,
        seed=args.seed,
    )


def _served(args: argparse.Namespace) -> Served:
    try:
        return served_of(dict(args.served))
    except ValueError as exc:
        raise UsageError(f"--served: {exc}") from exc


# ---- results ------------------------------------------------------------------------------------------------------


def _settings(args: argparse.Namespace, found: Preflight) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "model": found.model,
        "base_url": args.base_url,
        "api": args.api,
        "dataset": args.dataset,
        "fixed answer length": found.fixed_length and args.dataset in ("random", "shared-prefix"),
        "seed": args.seed,
    }
    if args.dataset_path:
        settings["dataset file"] = args.dataset_path.name
    if args.dataset in ("random", "shared-prefix"):
        settings |= {
            "prompt tokens": args.input_len,
            "answer tokens": args.output_len or 128,
            "length spread": args.length_spread,
            "prompt tokens per word, measured": round(found.ratio.per_word, 3),
        }
    if args.dataset == "shared-prefix":
        settings |= {"prefix tokens": args.prefix_len, "prefix groups": args.prefix_groups}
    if args.ladder:
        settings["ladder"] = ",".join(map(str, args.ladder))
    return settings | dict(args.provenance)


def _document(
    args: argparse.Namespace,
    config: SearchConfig,
    found: Preflight,
    outcome: Outcome,
    history: tuple[Level, ...],
    *,
    now: datetime.datetime,
    metrics_note: str,
    interrupted: bool,
    served: Served,
) -> dict[str, Any]:
    versions = {"instinct-fleet": __version__, "vllm": found.version or "unknown"}
    # Whoever says what was measured says all of it, so that the key can be computed beforehand.
    provenance = dict(args.provenance) or {"model": found.model, "vllm": found.version}
    capacity = capacity_of(
        history,
        outcome,
        config,
        instance=args.instance,
        key=capacity_key(provenance),
        tool_versions=versions,
        date=now.isoformat(timespec="seconds"),
        run_id=f"{now:%Y%m%d%H%M%S}-{secrets.token_hex(3)}",
        simulated=args.simulated,
    )
    if args.request_rate:
        capacity = dataclasses.replace(capacity, points=open_loop_points(history))
    groups = pooled(history)
    return {
        "kind": "instinct-fleet sweep",
        "schema": 1,
        "title": f"Load test of {found.model}",
        "verdict": outcome.verdict,
        "reasons": list(outcome.reasons),
        "interrupted": interrupted,
        "simulated": args.simulated,
        "capacity": to_json(capacity),
        "throughput": estimate_to_json(outcome.throughput),
        "best_concurrency": outcome.best,
        "intervals": {
            str(g.concurrency): [e["low"], e["high"]]
            for g in groups
            if (e := estimate_to_json(g.throughput)) is not None
        },
        "ttft_p95_ms": {str(g.concurrency): p * 1e3 for g in groups if (p := pooled_ttft(g, 0.95)) is not None},
        "fits": [to_json(f) for f in guides([(g.concurrency, g.throughput.value) for g in groups])],
        "spent": {"seconds": outcome.seconds, "requests": outcome.requests, "levels": len(history)},
        "server_metrics": metrics_note,
        "advice": list(advise(history, served, limit=capacity.limit)),
        "settings": {**_settings(args, found), "server's own request count": metrics_note},
        "rules": list(rules(config, max_lag=args.max_lag_ms / 1e3, steps=args.ladder)),
        "levels": [level_to_json(level) for level in history],
        "generated": now.isoformat(timespec="seconds"),
    }


def _write(directory: Path, document: Mapping[str, Any], *, report: bool) -> None:
    texts = {
        "sweep.json": json.dumps(document, indent=2) + "\n",
        "capacity.json": json.dumps(document["capacity"], indent=2) + "\n",
    }
    if report:
        # Here, since a node from which a load test runs lacks the library that draws.
        from instinct_fleet.report import render  # noqa: PLC0415

        texts["report.html"] = render(document)
    for name, text in texts.items():
        try:
            (directory / name).write_text(text, encoding="utf-8")
        except OSError as exc:
            raise _unwritten(directory / name, exc) from exc


def _unwritten(path: Path, exc: OSError) -> UsageError:
    return UsageError(
        f"--output-dir: {path}: {exc.strerror}; expected room for the results: what was measured is above"
    )


def _show(args: argparse.Namespace, document: Mapping[str, Any], directory: Path) -> None:
    if args.json:
        print(json.dumps({**document, "output_dir": str(directory)}, indent=2))
        return
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False)
    capacity = document["capacity"]
    if capacity["points"]:
        results = read_results([("capacity.json", json.dumps(capacity))])
        console.print(points_table(results.points, knee=capacity["knee"]))
    if capacity["knee"] is not None:
        low, high = capacity["knee_interval"] or (capacity["knee"], capacity["knee"])
        console.print(
            f"Knee {capacity['knee']} (95 %: {low} to {high}), limit {capacity['limit']}: {document['verdict']}"
        )
    else:
        console.print(f"No number: {document['verdict']}")
    for reason in document["reasons"]:
        console.print(f"Note: {reason}")
    for advice in document["advice"]:
        console.print(f"Advice: {advice}")
    if document["simulated"]:
        console.print("Simulated hardware: these numbers say nothing about a real GPU.")
    console.print(f"Results: {directory}" if args.no_report else f"Report: {directory / 'report.html'}")


# ---- comparison ---------------------------------------------------------------------------------------------------


def _compare(args: argparse.Namespace) -> int:
    a, b = args.compare
    live = [name.startswith(("http://", "https://")) for name in (a, b)]
    if live[0] != live[1]:
        raise UsageError(f"--compare: got {a} and {b}, expected two result files (or directories) or two base URLs")
    simulated = args.simulated
    if all(live):
        differences, interrupted, voids = _compare_live(args, a, b)
    else:
        left, right = load([Path(a)]), load([Path(b)])
        simulated = simulated or left.simulated or right.simulated
        differences = compare_points(pairs_of(left.points, right.points))
        interrupted, voids = False, []
        if not differences:
            raise UsageError(f"--compare: {a} and {b} have no concurrency in common at which both count")
    throughput = next((d for d in differences if d.metric == "requests/s"), None)
    verdict = throughput.verdict if throughput is not None and not voids else "inconclusive"
    document = {
        "kind": "instinct-fleet compare",
        "schema": 1,
        "a": a,
        "b": b,
        "simulated": simulated,
        "verdict": verdict,
        "differences": [to_json(d) for d in differences],
        "void": voids,
        "interrupted": interrupted,
    }
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        _show_differences(differences, verdict, voids)
        if simulated:
            print("Simulated hardware: these numbers say nothing about a real GPU.")
    if interrupted:
        return INTERRUPTED
    return FINDINGS if verdict == "inconclusive" else DONE


def _show_differences(differences: Sequence[Difference], verdict: str, voids: Sequence[str]) -> None:
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 200, highlight=False)
    for d in differences:
        interval = (
            "no interval from one pair" if d.low is None or d.high is None else f"95 %: {d.low:+.1%} to {d.high:+.1%}"
        )
        console.print(f"{d.metric}: A {d.a:.4g}, B {d.b:.4g}, change {d.change:+.1%} ({interval}; {d.pairs} pairs)")
    for void in voids:
        console.print(f"void: {void}")
    console.print(f"Verdict: {verdict}")


def _compare_live(args: argparse.Namespace, a: str, b: str) -> tuple[tuple[Difference, ...], bool, list[str]]:
    if args.concurrency is None:
        raise UsageError("--compare on two URLs: --concurrency not given; expected the concurrency to compare at")
    ask = Ask(
        concurrency=args.concurrency,
        purpose="compare",
        precision=0.02,
        max_seconds=args.level_seconds,
        min_seconds=min(2.0, args.level_seconds),
    )
    with Progress(args.budget_seconds) as progress:

        async def go() -> tuple[list[Level], list[Level], bool]:
            _stop_on_sigterm()
            drivers = []
            for url in (a, b):
                endpoint = _endpoint(args, url)
                endpoint = dataclasses.replace(endpoint, model=await find_model(endpoint))
                found = await preflight(endpoint, fixed_length=not args.natural_end, timeout=args.request_timeout)
                drivers.append(_driver(args, endpoint, found, progress))
            return await interleave(
                (drivers[0], drivers[1]),
                ask,
                rounds=args.rounds,
                on_level=lambda side, level: progress.level(level, "AB"[side] + " "),
                budget=args.budget_seconds,
            )

        try:
            left, right, interrupted = driving.run(go())
        except (EndpointError, DatasetError) as exc:
            raise UsageError(str(exc)) from exc
    voids = [f"{side}: {'; '.join(v.void)}" for side, group in (("A", left), ("B", right)) for v in group if v.void]
    pairs = [(x, y) for x, y in zip(left, right, strict=False) if not x.void and not y.void]
    tokens = [level.mean_output_tokens for pair in pairs for level in pair if level.mean_output_tokens]
    mean = sum(tokens) / len(tokens) if tokens else 1.0
    found = (
        difference("requests/s", [(x.throughput.value / mean, y.throughput.value / mean) for x, y in pairs]),
        difference(
            "TTFT p50", [((x.ttft_p50 or 0) * 1e3, (y.ttft_p50 or 0) * 1e3) for x, y in pairs], higher_is_better=False
        ),
        difference(
            "TTFT p99", [((x.ttft_p99 or 0) * 1e3, (y.ttft_p99 or 0) * 1e3) for x, y in pairs], higher_is_better=False
        ),
    )
    return tuple(d for d in found if d is not None), interrupted, voids
