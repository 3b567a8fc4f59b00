"""What the build role writes, runs and says: files of a wheelhouse, pip's command lines, and its errors in words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from instinct_fleet.codeobjects import FileReport, judge, serves
from instinct_fleet.runtime_sets import canonical, foreign, lock_lines, note

#: What :mod:`instinct_fleet` writes into a wheelhouse besides wheels, and that no wheel may replace.
LOCK, MANIFEST, PROVENANCE, COMPLETE = "lock.txt", "SHA256SUMS", "provenance.json", "complete.sha256"


def wheelhouse_files(runtime: Mapping[str, Any], *, path: str) -> list[dict[str, Any]]:
    """Return the managed files of a wheelhouse before its download: folder, pins, and the wheels that are made here."""
    entries: list[dict[str, Any]] = [{"dest": path, "state": "directory", "mode": "0755"}]
    texts = {"installer.txt": runtime["installer"]}
    if runtime["lock"] is not None:
        texts["index.txt"], texts["vendor.txt"] = _split(runtime["download"])
        texts[LOCK] = runtime["lock"]
    else:
        texts["requirements.txt"] = "".join(f"{line}\n" for line in runtime["requirements"])
        texts["constraints.txt"] = "".join(f"{line}\n" for line in runtime["constraints"])
    for name, text in sorted(texts.items()):
        entries.append({"dest": f"{path}/{name}", "content": text, "mode": "0644"})
    for name, data in sorted(runtime["wheels"].items()):
        entries.append({"dest": f"{path}/{name}", "content_b64": data, "mode": "0644"})
    return entries


def _split(requirements: str) -> tuple[str, str]:
    """Separate what the package index has from what only a vendor's index has: a version with a build tag.

    Apart, so that an unreachable vendor index is asked for a few packages and not for all of them.
    """
    index, vendor = "", ""
    for line in requirements.splitlines(keepends=True):
        if line.startswith("#"):
            continue
        if "+" in line.split(" ", 1)[0]:
            vendor += line
        else:
            index += line
    return index, vendor


def vendor_indexes(runtime: Mapping[str, Any], vendor_index_urls: Mapping[str, Any]) -> list[str]:
    """Return the vendor's indexes of a set: a site's mirror by the name of the set or of its accelerator, or its own.

    Raises:
        ValueError: a mirror is neither a URL nor a list of them; the message names the variable.
    """
    chosen = vendor_index_urls.get(runtime["name"], vendor_index_urls.get(runtime["accelerator"], runtime["indexes"]))
    urls = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(urls, (list, tuple)) or not all(isinstance(url, str) and url for url in urls):
        raise ValueError(f"vllm_build_vendor_index_urls for {runtime['name']} is {chosen!r}, expected a URL or a list")
    return list(urls)


def pip_options(runtime: Mapping[str, Any]) -> list[str]:
    """Return pip's options that choose wheels for the nodes, whatever Python and system the builder has."""
    options = ["--only-binary", ":all:", "--python-version", runtime["python"], "--implementation", "cp"]
    for abi in (runtime["abi"], "abi3", "none"):
        options += ["--abi", abi]
    for platform in [*runtime["platforms"], "any"]:
        options += ["--platform", platform]
    return options


def pip_download_commands(
    runtime: Mapping[str, Any], *, path: str, python: str, index_url: str, vendor_index_urls: Mapping[str, Any]
) -> list[list[str]]:
    """Return pip's command lines, each an argv list that ends in the requirements file it downloads.

    With a lock every wheel is asked for by version and SHA-256. Without one the pins are resolved, with all that they
    need, and what arrives is written down afterwards.
    """
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "30"]
    quiet += ["--log", f"{path}/build.log", *(["--index-url", index_url] if index_url else [])]
    common = [python, "-m", "pip", "download", *quiet, *pip_options(runtime), "--dest", path]
    extra = [word for url in vendor_indexes(runtime, vendor_index_urls) for word in ("--extra-index-url", url)]
    exact = ["--no-deps", "--require-hashes"]
    if runtime["lock"] is None:
        # `wheel` and not `download`: a part that an index has as a source only (AMD's package rocm, which chooses among
        # the SDK's wheels, is one) becomes a wheel too.
        resolve = [python, "-m", "pip", "wheel", *quiet, *extra, "--prefer-binary", "--wheel-dir", path]
        return [
            [*common, *exact, "--requirement", f"{path}/installer.txt"],
            [*resolve, "--constraint", f"{path}/constraints.txt", "--requirement", f"{path}/requirements.txt"],
        ]
    _index, vendor = _split(runtime["download"])
    commands = [[*common, *exact, "--requirement", f"{path}/index.txt"]]
    if vendor:
        commands.append([*common, *exact, *extra, "--requirement", f"{path}/vendor.txt"])
    return commands


# --- what is there ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WheelName:
    """The parts of a wheel's file name."""

    name: str
    version: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]


def wheel_name(file: str) -> WheelName:
    """Take the file name of a wheel apart.

    Raises:
        ValueError: it is none.
    """
    parts = file.removesuffix(".whl").split("-")
    if not file.endswith(".whl") or len(parts) not in (5, 6):
        raise ValueError(f"{file} is not the name of a wheel")
    return WheelName(
        name=canonical(parts[0]),
        version=unquote(parts[1]),
        pythons=tuple(parts[-3].split(".")),
        abis=tuple(parts[-2].split(".")),
        platforms=tuple(parts[-1].split(".")),
    )


def needs_glibc(platforms: Iterable[str]) -> tuple[int, int]:
    """Return the oldest glibc that a wheel with these platform tags runs on; (2, 5) for one that names none."""
    old = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    found = []
    for platform in platforms:
        match = re.match(r"manylinux_(\d+)_(\d+)_", platform)
        if match:
            found.append((int(match[1]), int(match[2])))
        else:
            found.append(old.get(platform.partition("_")[0], (2, 5)))
    return min(found, default=(2, 5))


def lock_of(files: Mapping[str, str], runtime: Mapping[str, Any]) -> str:
    """Write the lock of what a folder holds: every wheel but the installer, by version and the SHA-256 it has.

    Args:
        files: file name -> SHA-256 in hex.
        runtime: what ``runtime_set`` returned.

    Raises:
        ValueError: the same distribution is there twice, vLLM is missing or another version, or it is for CUDA.
    """
    installer = canonical(runtime["installer"].partition("==")[0])
    lines: dict[str, str] = {}
    for file in sorted(files):
        if not file.endswith(".whl"):
            continue
        wheel = wheel_name(file)
        if wheel.name == installer:
            continue
        if wheel.name in lines:
            raise ValueError(f"{wheel.name} is there twice ({file}, {lines[wheel.name].split(' ')[0]}); remove one")
        lines[wheel.name] = f"{wheel.name}=={wheel.version} --hash=sha256:{files[file]}"
    text = "".join(f"{lines[name]}\n" for name in sorted(lines))
    entries = lock_lines(text or "#", where="the wheelhouse") if text else {}
    version = entries.get("vllm", ("missing", ()))[0]
    if version.partition("+")[0] != runtime["vllm"]:
        raise ValueError(f"vllm is {version}, expected {runtime['vllm']}")
    problem = foreign(entries) if runtime["accelerator"] == "rocm" else None
    if problem:
        raise ValueError(problem)
    return text


def wheelhouse_problems(files: Mapping[str, str], *, lock: str, python: str, glibc: str) -> list[str]:
    """Return what is wrong with the files of a wheelhouse, one line each: missing, changed, foreign.

    Args:
        files: file name -> SHA-256 in hex.
        lock: its lock.
        python: minor version of the nodes' Python, as ``3.12``.
        glibc: version of the nodes' C library.
    """
    problems = []
    entries = lock_lines(lock, where="lock.txt")
    wheels: dict[str, list[str]] = {}
    for file in sorted(f for f in files if f.endswith(".whl")):
        wheels.setdefault(wheel_name(file).name, []).append(file)
    ours = tuple(int(part) for part in glibc.split("."))
    tag = f"cp{python.replace('.', '')}"
    for name, (version, hashes) in sorted(entries.items()):
        there = [file for file in wheels.get(name, []) if files[file] in hashes]
        if not there:
            wrong = wheels.get(name, [])
            if wrong:
                problems.append(
                    f"{wrong[0]} has SHA-256 {files[wrong[0]]}, expected {hashes[0]}: the file was changed or "
                    "replaced; do not install it before you know why"
                )
            else:
                problems.append(f"{name}=={version} is missing; run playbooks/build.yml again")
            continue
        wheel = wheel_name(there[0])
        needed = needs_glibc(wheel.platforms)
        if needed > ours:
            problems.append(f"{there[0]} needs glibc {needed[0]}.{needed[1]}, the nodes have {glibc}")
        if not any(p == tag or _runs_on(p, python, stable="abi3" in wheel.abis) for p in wheel.pythons):
            problems.append(f"{there[0]} is for {'.'.join(wheel.pythons)}, and the nodes run Python {python} ({tag})")
    return problems


def _runs_on(tag: str, python: str, *, stable: bool) -> bool:
    """Return whether a Python tag other than the exact one suits: ``py3``, ``py37``, or ``cp38`` with a stable ABI."""
    match = re.fullmatch(r"(py|cp)3(\d*)", tag)
    if match is None or (match[1] == "cp" and not stable):
        return False
    return not match[2] or int(match[2]) <= int(python.partition(".")[2])


def device_problems(reports: Mapping[str, Sequence[FileReport]], *, gfx: str, required: Sequence[str]) -> list[str]:
    """Return which wheels lack device code for a GPU, one line each.

    A host file may have its code in a kpack archive of another wheel (``torch[device-gfx942]``), so all wheels are
    judged as the one tree that they are installed into.

    Args:
        reports: file name of a wheel -> what is in it; paths are ``WHEEL!MEMBER``.
        gfx: the target, as ``gfx942``.
        required: distributions that must hold code for it, where they are there.
    """
    tree = [
        replace(report, path=report.path.partition("!")[2] or report.path)
        for found in reports.values()
        for report in found
    ]
    archives = [report for report in tree if report.kernels]
    problems = []
    for file, found in sorted(reports.items()):
        name = wheel_name(file).name
        if name not in {canonical(r) for r in required}:
            continue
        own = [replace(report, path=report.path.partition("!")[2] or report.path) for report in found]
        lacking = judge([*own, *(a for a in archives if a not in own)], subject=file, require=gfx)
        if not any(r.holds_device_code or r.cuda for r in own):
            problems.append(f"{file} holds no device code at all, expected some for {gfx}: it is a CPU build")
        elif any(r.cuda for r in own) and not any(r.holds_device_code for r in own):
            problems.append(f"{file} holds CUDA code and none for {gfx}: it is a CUDA wheel")
        elif any(finding.code == "codeobjects_kpack_absent" for finding in lacking):
            problems.append(f"{file} keeps its kernels in an archive that no wheel has: extra device-{gfx} is missing")
        elif not any(serves(t, gfx) for r in [*own, *archives] for t, _ in r.targets):
            targets = sorted({t for r in own for t, _ in r.targets})
            problems.append(f"{file} holds device code for {', '.join(targets)}, expected {gfx}")
    return problems


def manifest(files: Mapping[str, str]) -> str:
    """Return the text of SHA256SUMS, which ``sha256sum --check`` reads."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()) if name.endswith(".whl"))


def provenance(
    runtime: Mapping[str, Any],
    *,
    method: str,
    host: str,
    user: str,
    started: str,
    ended: str,
    indexes: Sequence[str],
    commands: Mapping[str, Any],
    built: Sequence[Mapping[str, Any]] = (),
    lock_from: str,
) -> str:
    """Return the text of provenance.json: who made a wheelhouse, when, from what, and with which tools.

    Credentials in the URLs of indexes and sources are left out.
    """
    versions = {}
    for name, said in sorted(commands.items()):
        text = str(said.get("stdout") or "").strip()
        versions[name.split(" ")[0].rpartition("/")[2]] = text.splitlines()[0] if said.get("rc") == 0 and text else None
    document = {
        "schema": 1,
        "release": runtime["release"],
        "set": runtime["name"],
        "vllm": runtime["vllm"],
        "gfx": runtime["gfx"],
        "method": method,
        "host": host,
        "user": user,
        "started": started,
        "ended": ended,
        "indexes": [without_credentials(url) for url in indexes if url],
        "lock_from": lock_from,
        "inputs": runtime["inputs"],
        "components": [
            {key: without_credentials(value) if isinstance(value, str) else value for key, value in entry.items()}
            for entry in built
        ],
        "tools": versions,
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def without_credentials(url: str) -> str:
    """Return a URL without user, password and query."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/@'\"]*@)?([^\s'\"?]*)(?:\?[^\s'\"]*)?")


def hide_credentials(text: str) -> str:
    """Return a text whose URLs have no user, password and query."""
    return _URL.sub(r"\1\2", text)


def index_problems(index_url: str, *, vendor_index_urls: Mapping[str, Any]) -> list[str]:
    """Return which URLs of indexes hold a user or a password, one line each and without them.

    They would stand in the process list of the builder, in its logs and in what a failing task shows.
    """
    urls = [("vllm_build_index_url", index_url)]
    for name, chosen in vendor_index_urls.items():
        listed = [chosen] if isinstance(chosen, str) else chosen if isinstance(chosen, (list, tuple)) else []
        urls += [(f"vllm_build_vendor_index_urls, {name}", url) for url in listed]
    return [
        f"{where} holds a user or a password for {without_credentials(str(url))}, which every user of the builder "
        "would see in its process list; put them into a netrc or pip.conf of the user that builds (mode 0600)"
        for where, url in urls
        if "@" in urlsplit(str(url)).netloc
    ]


def seal_files(
    runtime: Mapping[str, Any], found: Sequence[Mapping[str, Any]], *, path: str, record: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the files that finish a wheelhouse: lock, manifest, provenance, and last the note that it is complete.

    Args:
        runtime: what ``runtime_set`` returned.
        found: the wheels of the folder, as ansible.builtin.find returns them with their SHA-256.
        path: folder of the wheelhouse.
        record: the arguments of :func:`provenance` but the set.

    Raises:
        ValueError: what is there is not what was asked for.
    """
    files = {str(entry["path"]).rpartition("/")[2]: str(entry["checksum"]) for entry in found}
    lock = runtime["lock"] if runtime["lock"] is not None and record["method"] == "wheel" else lock_of(files, runtime)
    problems = wheelhouse_problems(files, lock=lock, python=runtime["python"], glibc=runtime["glibc"])
    if problems:
        raise ValueError("; ".join(problems))
    texts = {
        LOCK: lock,
        MANIFEST: manifest(files),
        PROVENANCE: provenance(runtime, **record),
        COMPLETE: wheelhouse_inputs(runtime, method=record["method"]),
    }
    return [{"dest": f"{path}/{name}", "content": text, "mode": "0644"} for name, text in texts.items()]


def wheelhouse_check(runtime: Mapping[str, Any], *, path: str, python: str) -> list[str]:
    """Return the command that checks a wheelhouse on the controller, for the nodes that will install it.

    Args:
        runtime: what ``runtime_set`` returned.
        path: the wheelhouse.
        python: the interpreter that runs the project.
    """
    command = [python, "-m", "instinct_fleet", "wheelhouse", path, "--json"]
    command += ["--python", runtime["python"], "--glibc", runtime["glibc"]]
    if runtime["gfx"]:
        command += ["--require", runtime["gfx"]]
        command += [word for name in runtime["device_code"] for word in ("--device-code", name)]
    return command


def wheelhouse_inputs(runtime: Mapping[str, Any], *, method: str) -> str:
    """Return the line that a finished wheelhouse is marked with: it changes with any input."""
    return hashlib.sha256(f"{method} {runtime['inputs']}".encode()).hexdigest() + "\n"


def installed_set(runtime: Mapping[str, Any], lock: str | None, *, path: str) -> dict[str, Any]:
    """Return a set with the lock of its wheelhouse, for nodes to install.

    Args:
        runtime: what ``runtime_set`` returned.
        lock: the text of the wheelhouse's lock.txt; None or empty where there is no wheelhouse.
        path: the wheelhouse, for messages.

    Raises:
        ValueError: the wheelhouse has another lock than the one that is pinned.
    """
    if not lock or runtime["lock"] == lock:
        return dict(runtime)
    if runtime["lock"] is not None:
        raise ValueError(
            f"{path}/lock.txt differs from the lock that set {runtime['name']} pins: it was changed, or made from "
            "other inputs; run playbooks/build.yml again"
        )
    entries = lock_lines(lock, where=f"{path}/lock.txt")
    problem = foreign(entries) if runtime["accelerator"] == "rocm" else None
    if problem:
        raise ValueError(f"{path}/lock.txt: {problem}")
    return {**runtime, "lock": lock, "complete_note": note(lock)}


_CAUSES = (
    (
        r"NameResolutionError|Failed to resolve|Connection refused|Network is unreachable|ConnectTimeout|"
        r"timed out|ProxyError|Max retries|403 Client Error|Could not fetch URL",
        "the package index cannot be reached; set vllm_build_index_url, or vllm_build_vendor_index_urls for wheels "
        "with a vendor's build tag, to a mirror that this host reaches",
    ),
    (
        r"DO NOT MATCH THE HASHES",
        "a wheel arrived with another SHA-256 than the one pinned; the index or mirror serves another file: do not "
        "use it before you know why",
    ),
    (r"No space left on device|Errno 28", "the disk is full; free some room or set vllm_build_root to another place"),
    (
        r"No module named pip",
        "this Python has no pip; install it (Debian: python3-pip) or set vllm_build_python to one that has",
    ),
    (
        r"No matching distribution|Could not find a version",
        "the index does not have a pinned wheel; use an index that mirrors it whole",
    ),
)


def pip_failure_text(result: Mapping[str, Any], *, host: str) -> str:
    """Say in words why the wheelhouse could not be made, from the result of the failed task."""
    failed = next((r for r in result.get("results") or [] if r.get("failed")), result)
    text = "\n".join(str(failed.get(key) or "") for key in ("stderr", "stdout", "msg"))
    wanted = re.search(r"No matching distribution found for (\S+)", text)
    detail = f" (it looked for {wanted.group(1)})" if wanted else ""
    for pattern, cause in _CAUSES:
        if re.search(pattern, text):
            return f"{host}: the wheelhouse is not complete: {cause}{detail}. What is there is kept; run again."
    last = [hide_credentials(line) for line in text.splitlines() if line.strip()][-3:]
    return f"{host}: the wheelhouse is not complete. The last lines were: {' / '.join(last) or '(nothing)'}"
