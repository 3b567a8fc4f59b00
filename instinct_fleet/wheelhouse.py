"""What the build role writes, runs and says: files of a wheelhouse, pip's command lines, and its errors in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def wheelhouse_files(runtime: Mapping[str, Any], *, path: str) -> list[dict[str, Any]]:
    """Return the managed files of a wheelhouse: its folder, the pins, and the wheels that are made here."""
    index, vendor = _split(runtime["download"])
    entries: list[dict[str, Any]] = [{"dest": path, "state": "directory", "mode": "0755"}]
    for name, text in (("lock.txt", runtime["lock"]), ("index.txt", index), ("vendor.txt", vendor)):
        entries.append({"dest": f"{path}/{name}", "content": text, "mode": "0644"})
    entries.append({"dest": f"{path}/installer.txt", "content": runtime["installer"], "mode": "0644"})
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


def pip_download_commands(
    runtime: Mapping[str, Any], *, path: str, python: str, index_url: str, vendor_index_urls: Mapping[str, str]
) -> list[list[str]]:
    """Return pip's command lines, each an argv list that ends in the requirements file it downloads.

    Raises:
        ValueError: there is no vendor index for this kind of accelerator; the message names the variable.
    """
    accelerator = runtime["accelerator"]
    if accelerator not in vendor_index_urls:
        raise ValueError(
            f"vllm_build_vendor_index_urls has {', '.join(sorted(vendor_index_urls)) or 'no entry'}, "
            f"expected one for {accelerator!r}"
        )
    common = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    common += ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--retries", "2", "--timeout", "30"]
    common += ["--python-version", runtime["python"], "--implementation", "cp"]
    for abi in (runtime["abi"], "abi3", "none"):
        common += ["--abi", abi]
    for platform in [*runtime["platforms"], "any"]:
        common += ["--platform", platform]
    if index_url:
        common += ["--index-url", index_url]
    common += ["--dest", path]
    _index, vendor = _split(runtime["download"])
    commands = [[*common, "--requirement", f"{path}/index.txt"]]
    if vendor:
        extra = ["--extra-index-url", vendor_index_urls[accelerator]]
        commands.append([*common, *extra, "--requirement", f"{path}/vendor.txt"])
    return commands


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
    last = [line for line in text.splitlines() if line.strip()][-3:]
    return f"{host}: the wheelhouse is not complete. The last lines were: {' / '.join(last) or '(nothing)'}"
