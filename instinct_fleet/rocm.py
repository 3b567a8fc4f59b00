"""From a bare node to AMD's driver and ROCm: what may be installed, from where, and whether it is there.

Pure functions: what `node_probe` read goes in, and what the role `rocm` does comes out. The combinations that are known
to work are data, with their sources, in data/rocm_compatibility.yml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from instinct_fleet.binding import runs
from instinct_fleet.openpgp import key_problem

TABLE = "instinct_fleet/data/rocm_compatibility.yml"
STACKS = ("none", "pip", "system")
#: The driver itself; its firmware moves with it.
DRIVER_PACKAGES = ("amdgpu-dkms", "amdgpu-dkms-firmware")
KEYRING = "/etc/apt/keyrings/rocm.asc"
RPM_KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-rocm"
HEADER = "# Managed by Ansible, role rocm.\n"
GROUPS = ("render", "video")

HEADERS_OF = ("-maxdepth", "2", "-name", "build", "-type", "d")

#: What `node_probe` must read for the functions below.
PROBE_COMMANDS: list[list[str]] = [
    ["apt-mark", "showhold"],
    ["dkms", "status"],
    ["dpkg", "--audit"],
    ["find", "-L", "/lib/modules", *HEADERS_OF],
    ["getent", "group", *GROUPS],
    ["ls", "-1", "/boot"],
    ["modinfo", "-F", "filename", "amdgpu"],
    ["udevadm", "--version"],
    ["update-initramfs", "-h"],
]
PROBE_PATHS = ["/etc/os-release", KEYRING, RPM_KEY, "/etc/environment"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SystemEntry(_Strict):
    """A distribution release, the name that AMD's repositories have for it, and its kernel series."""

    id: str
    version: str
    family: str
    suite: str
    kernels: tuple[str, ...]
    source: str


class DriverSeries(_Strict):
    """Driver releases and the ROCm series that they serve."""

    series: str
    releases: tuple[str, ...]
    rocm: tuple[str, ...]
    source: str


class Release(_Strict):
    """One ROCm release and what goes with it."""

    release: str
    driver: str
    systems: tuple[str, ...]
    pytorch: tuple[str, ...]
    wheels: tuple[str, ...]
    source: str


class Compatibility(_Strict):
    """Everything that data/rocm_compatibility.yml says."""

    schema_: int
    sources: dict[str, str]
    key_fingerprint: str
    systems: tuple[SystemEntry, ...]
    drivers: tuple[DriverSeries, ...]
    releases: tuple[Release, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Compatibility:
        named = {e.source for e in self.systems} | {e.source for e in self.drivers} | {e.source for e in self.releases}
        unsourced = sorted(named - set(self.sources))
        if unsourced:
            raise ValueError(f"source {', '.join(unsourced)} is not among sources")
        names = {f"{s.id} {s.version}" for s in self.systems}
        drivers = {release for d in self.drivers for release in d.releases}
        for entry in self.releases:
            if not set(entry.systems) <= names:
                raise ValueError(f"{entry.release}: systems {sorted(set(entry.systems) - names)} are not among systems")
            if entry.driver not in drivers:
                raise ValueError(f"{entry.release}: driver {entry.driver} is not among drivers")
        return self

    def rocm(self, release: str) -> Release | None:
        """Return a ROCm release, or None where the table does not have it."""
        return next((r for r in self.releases if r.release == release), None)

    def driver(self, release: str) -> DriverSeries | None:
        """Return the series of a driver release, or None where the table does not have it."""
        return next((d for d in self.drivers if release in d.releases), None)


@cache
def compatibility() -> Compatibility:
    """Read data/rocm_compatibility.yml."""
    document = yaml.safe_load((files("instinct_fleet.data") / "rocm_compatibility.yml").read_text())
    document["schema_"] = document.pop("schema")
    return Compatibility.model_validate(document)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _series(release: str) -> str:
    return ".".join(release.split(".")[:2])


def release_token(release: str) -> str:
    """Return how AMD writes a release inside the version of a package: 7.0.2 is 70002, driver 30.10.2 is 30100200.

    Seen in rocm-core 7.0.2.70002-56~24.04 and amdgpu-dkms 1:6.14.14.30100100-2212064.24.04 (driver 30.10.1); drivers
    up to 6.4 are numbered as ROCm was, amdgpu-dkms 1:6.10.5.60304-2125197.22.04.

    Raises:
        ValueError: it is not two to four numbers with dots between.
    """
    if not re.fullmatch(r"\d+(\.\d+){1,3}", release):
        raise ValueError(f"release is {release!r}, expected numbers with dots between, such as 7.2.1")
    parts = [int(part) for part in release.split(".")]
    if parts[0] >= 10:
        parts += [0] * (4 - len(parts))
        return "".join(f"{part:02d}" for part in parts)
    parts += [0] * (3 - len(parts))
    return f"{parts[0]}{parts[1]:02d}{parts[2]:02d}"


_AMD_VERSION = re.compile(r"\.(?P<token>\d{5}|\d{8})-\d+[~.](?:\d\d\.\d\d|el\d+)")


def version_token(version: str | None) -> str | None:
    """Return the release that a package version carries, as :func:`release_token` writes it, or None."""
    match = _AMD_VERSION.search(version or "")
    return match["token"] if match else None


def driver_release_of(version: str) -> str | None:
    """Return the driver release in the table that a version of amdgpu-dkms belongs to, or None."""
    token = version_token(version)
    releases = (release for d in compatibility().drivers for release in d.releases)
    return next((r for r in releases if token is not None and release_token(r) == token), None)


# --- the inputs alone ------------------------------------------------------------------------------------------------


def driver_for(release: str, driver_release: str = "") -> str:
    """Return the driver release to install: the one asked for, or the one that AMD published with the ROCm release.

    Raises:
        ValueError: none was asked for and the table does not have the ROCm release.
    """
    if driver_release:
        return driver_release
    entry = compatibility().rocm(release)
    if entry is None:
        raise ValueError(f"no driver is known for ROCm {release}; set rocm_driver_release")
    return entry.driver


def combination_problems(
    release: str, *, driver_release: str = "", vllm_variant: str = "", allow_unknown: bool = False
) -> list[str]:
    """Say what the inputs ask for that the table does not have; nothing is known of a host here.

    Args:
        release: ROCm release.
        driver_release: driver release, empty for the one that belongs to the ROCm release.
        vllm_variant: variant of the vLLM wheels, such as ``rocm721``; empty where none is asked about.
        allow_unknown: whether combinations that the table does not have are let through. A release that is not a
            release is a problem anyway.
    """
    for name, value in (("rocm_release", release), ("rocm_driver_release", driver_release)):
        if value:
            try:
                release_token(value)
            except ValueError as exc:
                return [f"{name}: {exc}"]
    table, problems = compatibility(), []
    entry = table.rocm(release)
    if entry is None:
        known = ", ".join(r.release for r in table.releases)
        if allow_unknown and not driver_release:
            return [f"rocm_release is {release}, which {TABLE} does not have: set rocm_driver_release too"]
        problems.append(f"rocm_release is {release}, expected one of {known}")
    driver = driver_release or (entry.driver if entry else "")
    series = table.driver(driver)
    if driver and series is None:
        known = ", ".join(r for d in table.drivers for r in d.releases)
        problems.append(f"rocm_driver_release is {driver}, expected one of {known}")
    if series is not None and _series(release) not in series.rocm:
        problems.append(
            f"driver {driver} is known to serve ROCm {', '.join(series.rocm)} ({series.source}), "
            f"and ROCm {release} is asked for"
        )
    if vllm_variant:
        carriers = [r for r in table.releases if vllm_variant in r.wheels]
        if not carriers:
            known = ", ".join(sorted({w for r in table.releases for w in r.wheels}))
            problems.append(f"rocm_vllm_variant is {vllm_variant}, expected one of {known}")
        elif series is not None and not any(_series(r.release) in series.rocm for r in carriers):
            problems.append(
                f"vLLM wheels {vllm_variant} carry ROCm {', '.join(r.release for r in carriers)}, "
                f"and driver {driver} is known to serve {', '.join(series.rocm)}"
            )
    return [] if allow_unknown else problems


def combination_text(problems: Sequence[str], *, host: str) -> str:
    """Say in one text why the inputs are refused and what lets them through."""
    return (
        f"{host}: {'; '.join(problems)}. The combinations and their sources are in {TABLE}. "
        "Change the release, or set rocm_allow_unknown_combination=true if you know that it works."
    )


def mirror_problems(urls: Mapping[str, str]) -> list[str]:
    """Return which variables hold the password of a mirror, one line each and without it.

    Everybody on a node may read its apt sources, and a diff shows them.
    """
    return [
        f"{name} holds a user or a password, which every user of the node could read; put it into a file of mode 0600 "
        "in /etc/apt/auth.conf.d, or give the mirror none"
        for name, url in sorted(urls.items())
        if "@" in urlsplit(url).netloc
    ]


# --- what was read of the node ---------------------------------------------------------------------------------------


def os_release(text: str | None) -> dict[str, str]:
    """Return the fields of /etc/os-release."""
    found = re.findall(r"^([A-Z_]+)=(.*)$", text or "", re.M)
    return {key: value.strip().strip("\"'") for key, value in found}


def system_of(text: str | None) -> SystemEntry | None:
    """Return the supported distribution that /etc/os-release describes, or None."""
    fields = os_release(text)
    version = fields.get("VERSION_ID", "")
    for entry in compatibility().systems:
        wanted = version.split(".")[0] if entry.id == "rhel" else version
        if (entry.id, entry.version) == (fields.get("ID"), wanted):
            return entry
    return None


def _said(probe: Mapping[str, Any], *argv: str) -> str | None:
    """Return what a command of the probe printed, or None where it could not be run."""
    result = (probe.get("commands") or {}).get(" ".join(argv))
    if not isinstance(result, Mapping) or result.get("path") is None or result.get("error"):
        return None
    return str(result.get("stdout") or "")


def newest_kernel(names: Iterable[str]) -> str | None:
    """Return the newest kernel among the names in /boot: the one that GRUB boots unless it is told otherwise."""
    found = [name.removeprefix("vmlinuz-") for name in names if name.startswith("vmlinuz-")]
    found = [name for name in found if "rescue" not in name]
    return max(found, key=_numbers, default=None)


def target_kernels(probe: Mapping[str, Any], kernels: Sequence[str] = ()) -> list[str]:
    """Return the kernels that the driver is needed for: the running one and the one that will boot.

    ``kernels`` replaces both, for an image that is prepared for another machine.
    """
    if kernels:
        return list(dict.fromkeys(kernels))
    boot = newest_kernel((_said(probe, "ls", "-1", "/boot") or "").split())
    return list(dict.fromkeys(k for k in (probe.get("kernel"), boot) if k))


_DKMS = re.compile(
    r"^amdgpu[/,]\s*(?P<version>[^,\s]+)(?:,\s*(?P<kernel>[^,\s]+),\s*(?P<arch>[^:\s]+))?\s*:\s*(?P<state>.*)$", re.M
)


def dkms_rows(text: str | None) -> list[dict[str, str | None]]:
    """Return version, kernel and state of each line of `dkms status` about amdgpu, of old and new DKMS."""
    return [
        {"version": m["version"], "kernel": m["kernel"], "state": m["state"].strip()}
        for m in _DKMS.finditer(text or "")
    ]


def dkms_state(text: str | None, kernel: str, version: str | None = None) -> str:
    """Return the state that DKMS has of amdgpu for one kernel: ``installed``, or what is there instead."""
    rows = [r for r in dkms_rows(text) if version is None or r["version"] in (version, None)]
    states = [str(r["state"]) for r in rows if r["kernel"] == kernel]
    if states:
        return "installed" if "installed" in states else states[0]
    return "added, and not built for this kernel" if rows else "absent"


#: Headlines of `dpkg --audit`. Configuring again mends the first kind; the second kind needs the package again.
_UNCONFIGURED = (
    "unpacked but not yet configured",
    "only half configured",
    "have been triggered",
    "awaiting processing",
)
_BROKEN = ("serious problems during", "only half installed")


def audit(text: str | None) -> dict[str, list[str]]:
    """Return the packages that dpkg left half way.

    ``unconfigured`` ones can be finished; ``broken`` ones must be installed again. What else
    dpkg audits, such as missing checksum files, stops nothing and is left out.
    """
    found: dict[str, list[str]] = {"unconfigured": [], "broken": []}
    kind = ""
    for paragraph in re.split(r"\n\s*\n", text or ""):
        names = [line.split()[0] for line in paragraph.splitlines() if line.startswith(" ") and line.strip()]
        headline = " ".join(line for line in paragraph.splitlines() if not line.startswith(" "))
        if headline:
            kind = "unconfigured" if any(w in headline for w in _UNCONFIGURED) else ""
            kind = "broken" if any(w in headline for w in _BROKEN) else kind
        if kind:
            found[kind] += [name.split(":")[0] for name in names]
    return {key: sorted(set(value)) for key, value in found.items()}


def driver_found(probe: Mapping[str, Any]) -> dict[str, Any]:
    """Say which driver is on the node's disk.

    Returns:
        ``kind``: ``none`` (the kernel's own or nothing), ``known`` (a release in the table), ``interrupted`` (its
        installation was), or ``unknown``; ``release`` where it is known; ``detail`` for a person; ``dkms`` the versions
        that DKMS has although no package owns them.
    """
    version = (probe.get("packages") or {}).get("amdgpu-dkms")
    rows = dkms_rows(_said(probe, "dkms", "status"))
    half = audit(_said(probe, "dpkg", "--audit"))
    if version:
        release = driver_release_of(version)
        kind = "known" if release else "unknown"
        detail = f"package amdgpu-dkms {version}" + ("" if release else f", a version of no driver in {TABLE}")
        return {"kind": kind, "release": release, "detail": detail, "dkms": []}
    if "amdgpu-dkms" in half["unconfigured"] + half["broken"]:
        return {"kind": "interrupted", "release": None, "detail": "amdgpu-dkms, half installed", "dkms": []}
    if rows:
        versions = sorted({str(r["version"]) for r in rows})
        detail = f"DKMS has amdgpu {', '.join(versions)}, and no package owns it"
        return {"kind": "unknown", "release": None, "detail": detail, "dkms": versions}
    filename = (_said(probe, "modinfo", "-F", "filename", "amdgpu") or "").strip()
    if filename.startswith("/") and not re.match(r"(/usr)?/lib/modules/[^/]+/kernel/", filename):
        detail = f"modprobe would load {filename}, which is neither the kernel's own nor of a package"
        return {"kind": "unknown", "release": None, "detail": detail, "dkms": []}
    return {"kind": "none", "release": None, "detail": filename or "no amdgpu module", "dkms": []}


def merged_environment(text: str | None, directory: str) -> str:
    """Return /etc/environment with a directory at the end of PATH; every other line stays as it was.

    sshd and cron read it through PAM, so that a command over ssh finds the tools; a login shell reads
    /etc/profile.d after it.
    """
    lines = (text or "").splitlines()
    for number, line in enumerate(lines):
        match = re.fullmatch(r"\s*(?:export\s+)?PATH=(?P<quote>[\"']?)(?P<value>.*?)(?P=quote)\s*", line)
        if match:
            parts = match["value"].split(":")
            if directory not in parts:
                lines[number] = f'PATH="{":".join([*parts, directory])}"'
            break
    else:
        # The value that Debian and Ubuntu compile into login, since PAM replaces PATH by what stands here.
        lines.append(f'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{directory}"')
    return "\n".join(lines) + "\n"


# --- the plan --------------------------------------------------------------------------------------------------------


def _stanza(uri: str, suite: str) -> str:
    return f"Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\nArchitectures: amd64\nSigned-By: {KEYRING}\n"


#: Reads one sources file alone, and calls anything that apt only warns of an error.
APT_TRIAL = (
    "apt-get update -o Dir::Etc::sourcelist=%s -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0 "
    "-o APT::Update::Error-Mode=any -o Acquire::Retries=1 -o Acquire::http::Timeout=20"
)


def _file(dest: str, content: str, **more: Any) -> dict[str, Any]:
    return {"dest": dest, "content": HEADER + content, "mode": "0644", **more}


def _absent(dest: str) -> dict[str, Any]:
    return {"dest": dest, "state": "absent", "mode": "0644"}


def repository_urls(
    system: SystemEntry, *, version: str, release: str, driver_release: str, urls: Mapping[str, str]
) -> dict[str, str]:
    """Return where AMD's layout keeps ROCm, driver and graphics libraries for a distribution.

    ``urls`` has the bases ``rocm``, ``driver`` and ``graphics``; ``version`` is the full VERSION_ID, since the driver's
    repository for RHEL 9 is one for each minor release.
    """
    base = {key: value.rstrip("/") for key, value in urls.items()}
    if system.family == "apt":
        return {
            "rocm": f"{base['rocm']}/apt/{release}",
            "driver": f"{base['driver']}/{driver_release}/ubuntu",
            "graphics": f"{base['graphics']}/{release}/ubuntu",
        }
    major = version.split(".", maxsplit=1)[0]
    place = major if int(major) >= 10 else version
    return {
        "rocm": f"{base['rocm']}/{system.suite}/{release}/main",
        "driver": f"{base['driver']}/{driver_release}/el/{place}/main/x86_64/",
        "graphics": f"{base['graphics']}/{release}/el/{place}/main/x86_64/",
    }


def _repository_files(system: SystemEntry, urls: Mapping[str, str], *, stack: str) -> list[dict[str, Any]]:
    if system.family == "apt":
        rocm = _stanza(urls["rocm"], system.suite)
        if stack == "system":
            rocm += "\n" + _stanza(urls["graphics"], system.suite)
        folder = "/etc/apt/sources.list.d"
        return [
            # What AMD's instructions and installer write: the same repository twice, with another key file, is an
            # error to apt.
            *(_absent(f"{folder}/{name}.list") for name in ("amdgpu", "amdgpu-proprietary", "rocm")),
            # 600 is above the distribution's 500, so that an older ROCm of AMD wins against a newer one of the
            # distribution (legacy-rocm-build issue 1713), and below the 1000 from which apt would downgrade by itself.
            _file(
                "/etc/apt/preferences.d/rocm-pin-600", "Package: *\nPin: release o=repo.radeon.com\nPin-Priority: 600\n"
            ),
            _file(f"{folder}/amdgpu.sources", _stanza(urls["driver"], system.suite), validate=APT_TRIAL),
            _file(f"{folder}/rocm.sources", rocm, validate=APT_TRIAL),
        ]
    names = ["driver", "rocm", *(["graphics"] if stack == "system" else [])]
    title = {"driver": "amdgpu", "rocm": "rocm", "graphics": "amdgraphics"}
    return [
        _file(
            f"/etc/yum.repos.d/{title[name]}.repo",
            f"[{title[name]}]\nname={title[name]}\nbaseurl={urls[name]}\nenabled=1\npriority=50\ngpgcheck=1\n"
            f"gpgkey=file://{RPM_KEY}\n",
        )
        for name in names
    ]


def _common_files(probe: Mapping[str, Any], *, stack: str, device_mode: str) -> list[dict[str, Any]]:
    environment = (probe.get("paths") or {}).get("/etc/environment")
    found = [
        {
            "dest": "/etc/environment",
            "content": merged_environment(environment, "/opt/rocm/bin"),
            "mode": "0644",
        },
        _file(
            "/etc/profile.d/instinct-rocm.sh",
            # /etc/profile sets PATH anew, after PAM did.
            'case ":$PATH:" in *:/opt/rocm/bin:*) ;; *) PATH="$PATH:/opt/rocm/bin"; export PATH ;; esac\n',
        ),
        {"dest": "/etc/udev/rules.d", "state": "directory", "mode": "0755"},
        _file(
            "/etc/udev/rules.d/70-amdgpu.rules",
            f'KERNEL=="kfd", GROUP="render", MODE="{device_mode}"\n'
            f'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="{device_mode}"\n',
            notify=["rocm udev"],
        ),
    ]
    # The wheels bring ROCm's libraries; a second set of them in the loader's path could be taken instead.
    libraries = "/etc/ld.so.conf.d/rocm.conf"
    if stack == "system":
        found.append(_file(libraries, "/opt/rocm/lib\n/opt/rocm/lib64\n", notify=["rocm ldconfig"]))
    else:
        found.append({**_absent(libraries), "notify": ["rocm ldconfig"]})
    return found


def _header_packages(system: SystemEntry, kernel: str) -> list[str]:
    if system.family == "dnf":
        return [f"kernel-devel-{kernel}", f"kernel-headers-{kernel}"]
    extra = [f"linux-modules-extra-{kernel}"] if system.id == "ubuntu" else []
    return [f"linux-headers-{kernel}", *extra]


def _unsettled(
    probe: Mapping[str, Any], *, wanted: Mapping[str, str], kernels: Sequence[str], family: str
) -> list[dict[str, str]]:
    """Return what is not as wanted on the node: {kind, subject, what}; empty on a converged node."""
    packages = probe.get("packages") or {}
    found: list[dict[str, str]] = []

    def add(kind: str, subject: str, what: str) -> None:
        found.append({"kind": kind, "subject": subject, "what": what})

    holds = (_said(probe, "apt-mark", "showhold") or "").split()
    for name, token in wanted.items():
        version = packages.get(name)
        if version_token(version) != token:
            add("package", name, f"{name} is {version or 'not installed'}, expected a version with .{token}-")
        elif family == "apt" and name not in holds:
            add("hold", name, f"{name} is not held, expected `apt-mark hold {name}`")
    headers = _said(probe, "find", "-L", "/lib/modules", *HEADERS_OF) or ""
    status = _said(probe, "dkms", "status")
    for kernel in kernels:
        place = f"/lib/modules/{kernel}/build"
        if place not in headers.splitlines():
            add("headers", kernel, f"kernel {kernel} has no headers, expected them at {place}")
        state = dkms_state(status, kernel)
        if state != "installed":
            add("dkms", kernel, f"the driver for kernel {kernel} is {state}, expected installed")
    half = audit(_said(probe, "dpkg", "--audit"))
    for name in sorted({*half["unconfigured"], *half["broken"]}):
        add("dpkg", name, f"package {name} is half installed, expected it configured")
    return found


#: The plan for a node that is left alone.
EMPTY_PLAN: dict[str, Any] = {
    "refusals": [],
    "family": None,
    "suite": None,
    "urls": {},
    "kernels": [],
    "driver": {"kind": "none", "release": None, "detail": "", "dkms": []},
    "driver_release": None,
    "key_path": KEYRING,
    "key_ok": True,
    "files": [],
    "packages": {},
    "unsettled": [],
    "headers": [],
    "half": [],
    "foreign_dkms": [],
    "unbuilt": [],
    "groups": [],
    "members": [],
    "initramfs": [],
    "has_udev": False,
}


def rocm_plan(
    probe: Mapping[str, Any],
    *,
    stack: str,
    release: str,
    driver_release: str = "",
    urls: Mapping[str, str],
    key_fingerprint: str,
    packages: Sequence[str] = (),
    kernels: Sequence[str] = (),
    users: Sequence[str] = (),
    device_mode: str = "0660",
    allow_unknown: bool = False,
    replace_driver: bool = False,
) -> dict[str, Any]:
    """Compare a node with what is wanted on it.

    Args:
        probe: what `node_probe` returned, with :data:`PROBE_COMMANDS` and :data:`PROBE_PATHS`.
        stack: ``none`` for an empty plan, ``pip`` for the driver and the tools in ``packages``, ``system`` for ROCm in
            /opt/rocm as well.
        release, driver_release: as in :func:`combination_problems`.
        urls: base URLs ``rocm``, ``driver``, ``graphics``.
        packages: ROCm packages to install besides the driver.
        kernels, allow_unknown, replace_driver: inputs of the role of the same name.
        users: members of the groups that open the GPUs.
        device_mode: mode of /dev/kfd and the render nodes.

    Returns:
        ``refusals``: why nothing may be changed here, with what mends it; ``family``, ``suite``, ``kernels``;
        ``key_ok``; ``files`` for managed_files; ``packages`` {name: release token}; ``unsettled``
        [{kind, subject, what}]; ``headers`` to install; ``half`` packages to configure; ``initramfs`` kernels to
        make it anew for; ``foreign_dkms`` to remove; ``groups`` to make; ``members`` to add.

    Raises:
        ValueError: the stack or a release is not one.
    """
    if stack not in STACKS:
        raise ValueError(f"stack is {stack!r}, expected one of {', '.join(STACKS)}")
    if stack == "none":
        return dict(EMPTY_PLAN)
    driver_release = driver_for(release, driver_release)
    paths = probe.get("paths") or {}
    fields = os_release(paths.get("/etc/os-release"))
    system = system_of(paths.get("/etc/os-release"))
    if system is None:
        seen = fields.get("PRETTY_NAME") or "a distribution that could not be read from /etc/os-release"
        known = ", ".join(f"{s.id} {s.version}" for s in compatibility().systems)
        return {**EMPTY_PLAN, "refusals": [f"the node runs {seen}, expected one of {known}"]}
    targets = target_kernels(probe, kernels)
    driver = driver_found(probe)
    refusals = []
    entry = compatibility().rocm(release)
    name = f"{system.id} {system.version}"
    if entry is not None and name not in entry.systems and not allow_unknown:
        refusals.append(f"ROCm {release} is not known to run on {name} (known: {', '.join(entry.systems)})")
    if not targets:
        refusals.append("the kernel could not be read, expected one from uname or /boot; set rocm_kernels")
    for kernel in targets:
        if ".".join(kernel.split(".")[:2]) not in system.kernels and not allow_unknown:
            refusals.append(
                f"kernel {kernel} is not of a series that is known to work on {name} ({', '.join(system.kernels)}); "
                "boot another kernel, or set rocm_allow_unknown_combination=true"
            )
    if driver["kind"] == "unknown" and not replace_driver:
        refusals.append(
            f"a driver that this role does not know is there: {driver['detail']}. It is left alone. "
            f"Set rocm_replace_driver=true to replace it by driver {driver_release}, or rocm_stack=none to keep it"
        )
    half = audit(_said(probe, "dpkg", "--audit")) if system.family == "apt" else {"unconfigured": [], "broken": []}
    if half["broken"]:
        refusals.append(
            f"dpkg left {', '.join(half['broken'])} broken, which configuring again does not mend; "
            f"run `apt-get install --reinstall {' '.join(half['broken'])}` on the node"
        )
    token, driver_token = release_token(release), release_token(driver_release)
    wanted = {**dict.fromkeys(DRIVER_PACKAGES, driver_token), **dict.fromkeys(packages, token)}
    unsettled = _unsettled(probe, wanted=wanted, kernels=targets, family=system.family)
    lacking = {u["subject"] for u in unsettled if u["kind"] == "headers"}
    links = repository_urls(
        system, version=fields.get("VERSION_ID", ""), release=release, driver_release=driver_release, urls=urls
    )
    boot = (_said(probe, "ls", "-1", "/boot") or "").split()
    members: dict[str, list[str]] = {}
    for line in (_said(probe, "getent", "group", *GROUPS) or "").splitlines():
        parts = line.split(":")
        if len(parts) == 4:
            members[parts[0]] = [m for m in parts[3].split(",") if m]
    key_path = KEYRING if system.family == "apt" else RPM_KEY
    return {
        "refusals": refusals,
        "family": system.family,
        "suite": system.suite,
        "urls": links,
        "kernels": targets,
        "driver": driver,
        "driver_release": driver_release,
        "key_path": key_path,
        "key_ok": key_problem(paths.get(key_path), key_fingerprint) is None,
        "files": _repository_files(system, links, stack=stack)
        + _common_files(probe, stack=stack, device_mode=device_mode),
        "packages": wanted,
        "unsettled": unsettled,
        "headers": [p for k in targets if k in lacking for p in _header_packages(system, k)],
        "half": half["unconfigured"],
        "foreign_dkms": driver["dkms"] if replace_driver else [],
        "unbuilt": [u["subject"] for u in unsettled if u["kind"] == "dkms"],
        "groups": [g for g in GROUPS if g not in members],
        "members": [
            {"user": user, "groups": missing}
            for user in users
            if (missing := [g for g in GROUPS if user not in members.get(g, [])])
        ],
        "initramfs": [k for k in targets if f"initrd.img-{k}" in boot]
        if _said(probe, "update-initramfs", "-h") is not None
        else [],
        "has_udev": _said(probe, "udevadm", "--version") is not None,
    }


def rocm_refusal_text(plan: Mapping[str, Any], *, host: str) -> str:
    """Say why a node is left as it is."""
    return f"{host}: nothing was changed: " + "; ".join(plan["refusals"]) + "."


def rocm_unsettled_text(plan: Mapping[str, Any], *, host: str) -> str:
    """Say what is not as wanted although it was installed."""
    why = "; ".join(u["what"] for u in plan["unsettled"])
    logs = "`dkms status` and make.log below /var/lib/dkms/amdgpu on the node tell why a driver is not built"
    return f"{host}: after installing: {why}. {logs}."


# --- apt -------------------------------------------------------------------------------------------------------------


def amd_packages(listing: str) -> dict[str, str]:
    """Return the installed packages whose versions are AMD's, from `dpkg-query -W -f '${Package} ${Version}'` lines.

    They have to move together: apt does not downgrade a dependency by itself.
    """
    rows = (line.split() for line in listing.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2 and version_token(row[1])}


def madison(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return {package: [(version, where it is from)]} of `apt-cache madison`."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if len(parts) == 3 and not parts[2].endswith("Sources"):
            found.setdefault(parts[0], []).append((parts[1], parts[2]))
    return found


def rocm_install(available: str, *, plan: Mapping[str, Any], installed: str = "") -> dict[str, list[str]]:
    """Return what to hand to `apt-get install`.

    Args:
        available: `apt-cache madison` of all names that are wanted or installed.
        plan: from :func:`rocm_plan`.
        installed: `dpkg-query` as :func:`amd_packages` reads it.

    Returns:
        ``specs``: arguments, each with its exact version; ``problems``: what the repositories lack.
    """
    offers = madison(available)
    links: Mapping[str, str] = plan["urls"]
    have = amd_packages(installed)
    tokens = dict(plan["packages"])
    release = next((t for n, t in tokens.items() if n not in DRIVER_PACKAGES), None)
    specs, problems = [], []
    for name, token in tokens.items():
        link = links["driver"] if name in DRIVER_PACKAGES else links["rocm"]
        ours = [version for version, where in offers.get(name, []) if where.startswith((f"{link} ", f"{link}/"))]
        right = [version for version in ours if version_token(version) == token]
        if right:
            specs.append(f"{name}={right[0]}")
        else:
            seen = f"has {name} {', '.join(ours)}" if ours else f"has no {name}"
            problems.append(f"{link} ({plan['suite']}) {seen}, expected a version with .{token}-")
    # What came along with another release goes to this one, or goes.
    mine = {links["rocm"], links["driver"], links["graphics"]}
    for name, version in sorted(have.items()):
        if name in tokens or version_token(version) in (release, tokens[DRIVER_PACKAGES[0]]):
            continue
        right = [
            offer
            for offer, where in offers.get(name, [])
            if any(where.startswith(f"{link} ") for link in mine)
            and version_token(offer) in (release, tokens[DRIVER_PACKAGES[0]])
        ]
        specs.append(f"{name}={right[0]}" if right else f"{name}-")
    for name in plan["headers"]:
        if name in offers:
            specs.append(name)
        else:
            problems.append(
                f"no repository of the node has {name}; its kernel may be too old to be published still: boot the "
                "distribution's newest kernel, or add the repository that has it"
            )
    return {"specs": specs, "problems": problems}


#: (pattern in what apt says, what it means, what mends it)
_APT_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"NO_PUBKEY|Missing key|EXPKEYSIG|REVKEYSIG|No signature by|not yet bound|NO_PUBKEY",
        "the repository is signed by another key, or by one that has expired, than the pinned {fingerprint}",
        "check the mirror and its key with AMD; rocm_key_fingerprint and rocm_key_url name them",
    ),
    (
        r"BADSIG|signatures were invalid|signature verification failed|Bad signature|Hash Sum mismatch|is not signed"
        r"|no longer signed|Clearsigned file isn't valid|Message has been manipulated|Malformed",
        "the signature of the repository does not fit its contents: the mirror is damaged or was changed",
        "let the mirror be synchronised again; nothing is installed without a valid signature",
    ),
    (
        r"Could not connect|Connection refused|Could not resolve|Temporary failure|timed out|Connection failed"
        r"|Network is unreachable|No route to host|Unable to connect",
        "the mirror cannot be reached from this node",
        "rocm_mirror_url, rocm_driver_mirror_url and rocm_graphics_mirror_url name the mirror",
    ),
    (
        r"does not have a Release file|404\s+(Not Found|File not found)|no longer has a Release file",
        "the mirror has no such release or suite",
        "check rocm_release and rocm_driver_release against what the mirror holds",
    ),
)


def _spoken(result: Any) -> str:
    """Return all that a task's result says, also of the items of a loop."""
    if not isinstance(result, Mapping):
        return str(result)
    parts = [str(result.get(key) or "") for key in ("msg", "stderr", "stdout")]
    parts += [_spoken(item) for item in result.get("results") or [] if item.get("failed")]
    return "\n".join(part for part in parts if part and part != "non-zero return code")


def apt_failure_text(result: Any, *, host: str, fingerprint: str) -> str:
    """Say what an error of apt means and what mends it; what apt itself said follows.

    ``result`` is the text, or the result of the failed task. A message that is not recognised is handed on as it is.
    """
    said = _spoken(result)
    # The command that tried a file is of no help to who reads this.
    said = re.sub(r"was refused by `[^`]*` \(exit code \d+\)", "was refused", said)
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(.*It said: )?(E|W|Err)[:.]", line)] or lines
    quoted = " / ".join(errors)[-1500:]
    for pattern, meaning, remedy in _APT_CAUSES:
        if re.search(pattern, said):
            meant = meaning.format(fingerprint=fingerprint)
            return f"{host}: {meant}. {remedy[0].upper()}{remedy[1:]}. apt said: {quoted}"
    return f"{host}: apt failed: {quoted}"


def key_refusal_text(text: str | None, fingerprint: str, *, host: str, url: str) -> str:
    """Say why the key that was downloaded is not taken."""
    return (
        f"{host}: {url} holds {key_problem(text, fingerprint)}. It was not installed. rocm_key_url and "
        "rocm_key_fingerprint name the key; AMD publishes the fingerprint of its own"
    )


def rocm_removal(probe: Mapping[str, Any], *, installed: str) -> dict[str, Any]:
    """Return what takes AMD's packages off a node again.

    Returns:
        ``packages`` to purge, ``held`` ones to release first, ``files`` to remove, and ``serving``: units that run.
    """
    names = sorted(amd_packages(installed))
    holds = (_said(probe, "apt-mark", "showhold") or "").split()
    folder = "/etc/apt/sources.list.d"
    paths = [
        f"{folder}/amdgpu.sources",
        f"{folder}/rocm.sources",
        "/etc/apt/preferences.d/rocm-pin-600",
        KEYRING,
        "/etc/profile.d/instinct-rocm.sh",
        "/etc/udev/rules.d/70-amdgpu.rules",
        "/etc/ld.so.conf.d/rocm.conf",
    ]
    serving = [name for name, state in sorted((probe.get("units") or {}).items()) if runs(state)]
    return {
        "packages": names,
        "held": [name for name in names if name in holds],
        "files": [_absent(path) for path in paths],
        "serving": serving,
    }


def rocm_probe_needs(kind: str) -> list[Any]:
    """Return what `node_probe` must read for this module: its ``commands``, ``paths`` or ``packages``."""
    needs: dict[str, list[Any]] = {
        "commands": PROBE_COMMANDS,
        "paths": PROBE_PATHS,
        "packages": list(DRIVER_PACKAGES),
    }
    return needs[kind]


def rocm_dnf_specs(plan: Mapping[str, Any]) -> list[str]:
    """Return the pinned packages as dnf takes them: any build of the wanted release."""
    return [f"{name}-*.{token}-*" for name, token in sorted(plan["packages"].items())]


def rocm_removal_text(removal: Mapping[str, Any], *, host: str) -> str:
    """Say what would be removed and what stops it."""
    what = f"{host}: {', '.join(removal['packages']) or 'no package of AMD'} would be removed"
    if removal["serving"]:
        return f"{what} while {', '.join(removal['serving'])} runs; stop it first"
    return f"{what}; set rocm_remove_allowed=true if that is wanted"
