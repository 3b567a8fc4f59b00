"""The test bench: simulated nodes for the demo, for Molecule and for CI. Standard library only.

    python3 molecule/bench/bench.py setup                       virtual environment of the project
    python3 molecule/bench/bench.py up NAME --address 127.0.1.11 [--profile mi300x_8] [--suite trixie]
    python3 molecule/bench/bench.py down [NAME...]              without a name: everything of ours
    python3 molecule/bench/bench.py demo

A node is a podman container with systemd as PID 1 and the host's network; each has a loopback address of its own.
The tools of AMD's GPUs are replayed from a hardware profile; everything else in it is real.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
CACHE = REPO / ".cache"
VENV = REPO / ".venv"
WHEELHOUSE = CACHE / "wheelhouse"
MODELS = CACHE / "models"
NODES = CACHE / "nodes"
LABEL = "instinct-fleet=bench"

#: Debian release of the nodes that serve. Its Python is the one that the wheels of runtime set "cpu" are for.
SUITE = os.environ.get("BENCH_NODE_SUITE", "bookworm")
#: Where the nodes' packages come from; empty for the mirror that this machine uses.
MIRROR = os.environ.get("BENCH_DEBIAN_MIRROR", "")
NODE_PACKAGES = [
    "ca-certificates",
    "curl",
    "dbus",
    "iproute2",
    "numactl",
    "procps",
    "python3",
    "systemd",
    "systemd-sysv",
]
#: What vLLM needs besides. A node of another release than SUITE serves nothing and is built in half the time.
SERVING_PACKAGES = ["g++", "python3-dev", "python3-venv"]
REPLAYED = ["amd-smi", "rocm-smi", "rocminfo", "lspci", "all_reduce_perf"]
#: What makes a root file system ("$1", as mmdebstrap's hooks have it) that of a node: replayed tools, a marker, groups.
SIMULATED_NODE = [
    *(f'ln -s /opt/replay/bin/replay "$1/usr/local/bin/{tool}"' for tool in REPLAYED),
    'echo "GPU tools are replayed from a profile" > "$1/etc/instinct-fleet-simulated"',
    'chroot "$1" groupadd --system --force render',
    'chroot "$1" groupadd --system --force video',
]
#: What the bench itself needs, by the program that shows it is there.
HOST_PACKAGES = {"podman": "podman", "mmdebstrap": "mmdebstrap", "curl": "curl", "gpg": "gnupg"}
#: What the tests of the report need beside it.
BROWSER_PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}

DEMO_NODE = "demo-node1"
DEMO_ADDRESS = "127.0.1.11"


class BenchError(Exception):
    """What went wrong, in one line, with what mends it."""


def say(text: str) -> None:
    """Tell the user what happens."""
    print(f"==> {text}", file=sys.stderr, flush=True)


def run(title: str, argv: list[str], *, hint: str = "", env: dict[str, str] | None = None) -> str:
    """Run a program, show a line of progress every five seconds, and return what it printed.

    Raises:
        BenchError: it failed; the message holds its last lines and the hint.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
        cwd=REPO,
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        for raw in process.stdout:
            lines.append(raw.decode("utf-8", "replace").rstrip())

    reader = threading.Thread(target=read)
    reader.start()
    said = started
    while process.poll() is None:
        time.sleep(0.1)
        if time.monotonic() - said >= 5:
            said = time.monotonic()
            last = next((line for line in reversed(lines) if line.strip()), "")[:80]
            print(f"... {title}: {said - started:.0f} s  {last}", file=sys.stderr, flush=True)
    reader.join()
    if process.returncode != 0:
        tail = " / ".join(line for line in lines if line.strip() and "is ignored" not in line)[-600:]
        raise BenchError(f"{title} failed (`{' '.join(argv[:4])} ...`, exit code {process.returncode}): {tail}. {hint}")
    return "\n".join(lines)


def ask(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a quick program and return what it said, whatever its exit code."""
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def podman(*arguments: str) -> list[str]:
    """Return a podman command line with the runtime that this machine's cgroups need."""
    # crun refuses the hybrid cgroup layout; with cgroup v2 podman's own choice is right.
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return ["podman", *([] if unified else ["--runtime", "runc"]), *arguments]


def weight() -> list[str]:
    """Return podman's options that leave the processors to whoever drives a node.

    vLLM's workers spin while they wait for each other: with the usual weight two of them on two cores left Ansible 2 %.
    """
    options = ["--cpu-shares=128"]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        # Below podman's own group, which has the usual weight, the one of a node would mean nothing.
        options.append("--cgroup-parent=/")
    return options


def limits() -> list[str]:
    """Return podman's options for limits that this process may hand on.

    podman's own defaults ask for more than a machine without CAP_SYS_RESOURCE may allow. What this process may have
    can be passed on, up to what podman itself was given.
    """
    options = []
    for option, which, most in (("nofile", resource.RLIMIT_NOFILE, 1 << 20), ("nproc", resource.RLIMIT_NPROC, 1 << 15)):
        hard = resource.getrlimit(which)[1]
        value = most if hard == resource.RLIM_INFINITY else min(hard, most)
        options += ["--ulimit", f"{option}={value}:{value}"]
    return options


def install_packages() -> None:
    """Install what the bench lacks on this machine."""
    missing = [package for program, package in HOST_PACKAGES.items() if not shutil.which(program)]
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists() and not shutil.which("runc"):
        missing.append("runc")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if ask([sys.executable, "-c", "import ensurepip, venv"]).returncode != 0:
        missing.append(f"python{version}-venv")
    install(missing)


def install(missing: list[str]) -> None:
    """Install packages of this machine's distribution."""
    if not missing:
        return
    if os.geteuid() != 0:
        raise BenchError(f"this machine lacks {', '.join(missing)}; install them, or run as root")
    hint = "Is the distribution's mirror reachable (see /etc/apt/sources.list)?"
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    run("reading the package lists", ["apt-get", "-q", "update"], hint=hint, env=env)
    run(
        f"installing {', '.join(missing)}",
        ["apt-get", "-q", "-y", "--no-install-recommends", "install", *missing],
        hint=hint,
        env=env,
    )


def browser() -> None:
    """Install the browser that looks at the reports. Without root the tests that need it say that they were skipped."""
    if os.geteuid() == 0:
        install([package for program, package in BROWSER_PACKAGES.items() if not shutil.which(program)])


def setup() -> None:
    """Make or refresh the project's virtual environment."""
    install_packages()
    wanted = hashlib.sha256((REPO / "pyproject.toml").read_bytes() + sys.version.encode()).hexdigest()
    stamp = VENV / "made-for"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if VENV.is_symlink():
        raise BenchError(f"{VENV} is a link to {VENV.resolve()}, which would be emptied; remove the link and run again")
    say("making the virtual environment")
    run("making the virtual environment", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    run(
        "installing the project and its tools",
        [str(VENV / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--editable", ".[dev]"],
        hint="Is the package index reachable? PIP_INDEX_URL names a mirror.",
    )
    stamp.write_text(wanted)


def interpreter(version: str) -> str | None:
    """Return a Python of this minor version, from PATH or from pyenv, or None."""
    found = shutil.which(f"python{version}")
    if found and ask([found, "--version"]).returncode == 0:
        return found
    known = ask(["pyenv", "versions", "--bare"]).stdout.split() if shutil.which("pyenv") else []
    for name in known:
        if name.startswith(f"{version}."):
            path = Path(ask(["pyenv", "prefix", name]).stdout.strip()) / "bin/python"
            return str(path) if path.exists() else None
    return None


def unit_all() -> None:
    """Run the unit tests on the other Pythons that the project supports."""
    for version in ("3.12", "3.13"):
        python = interpreter(version)
        if python is None:
            say(f"Python {version} is not on this machine: the unit tests were not run on it")
            continue
        place = CACHE / f"venv-{version}"
        run(f"making an environment for Python {version}", [python, "-m", "venv", str(place)])
        pip = [str(place / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run(f"installing for Python {version}", [*pip, "--editable", ".[dev]"])
        say(f"unit tests on Python {version}")
        if (
            subprocess.run([str(place / "bin/python"), "-m", "pytest", "-n", "2"], cwd=REPO, check=False).returncode
            != 0
        ):
            raise BenchError(f"the unit tests fail on Python {version}")


def mirror() -> list[str]:
    """Return the mirror for mmdebstrap, and nothing where mmdebstrap's own choice is right."""
    if MIRROR:
        return [MIRROR]
    found = ask(["apt-get", "indextargets", "--format", "$(CREATED_BY) $(REPO_URI) $(CODENAME)"]).stdout
    for line in found.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0] == "Packages" and parts[2] in ("bookworm", "trixie"):
            return [parts[1]]
    return []


def packages_of(suite: str) -> list[str]:
    """Return what is installed on a node of a Debian release."""
    return sorted([*NODE_PACKAGES, *(SERVING_PACKAGES if suite == SUITE else [])])


def image(suite: str = SUITE) -> str:
    """Build the image of a node unless it is there, and return its name."""
    packages = packages_of(suite)
    customize = "\n".join(
        [
            *SIMULATED_NODE,
            # A getty, a clock and kernel modules have no place in a container, and systemd must reach "running".
            'chroot "$1" systemctl mask getty.target console-getty.service systemd-timesyncd.service '
            "systemd-modules-load.service",
        ]
    )
    recipe = hashlib.sha256(repr((suite, packages, customize)).encode()).hexdigest()[:12]
    name = f"localhost/instinct-fleet-node:{suite}-{recipe}"
    if ask(["podman", "image", "exists", name]).returncode == 0:
        return name
    say(f"building the node image ({suite})")
    CACHE.mkdir(exist_ok=True)
    tarball = CACHE / "rootfs.tar"
    run(
        "building the node image",
        [
            "mmdebstrap",
            "--variant=minbase",
            "--include=" + ",".join(packages),
            f"--customize-hook={customize}",
            suite,
            str(tarball),
            *mirror(),
        ],
        hint="Is the mirror reachable? BENCH_DEBIAN_MIRROR names another.",
    )
    try:
        run("importing the node image", ["podman", "import", "-q", "-c", 'CMD ["/sbin/init"]', str(tarball), name])
    finally:
        tarball.unlink()
    return name


def online_cpus() -> list[int]:
    """Return the CPUs of this machine, for the node that runs on it."""
    cpus: list[int] = []
    for part in Path("/sys/devices/system/cpu/online").read_text().strip().split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def load_profile(name: str) -> Any:
    """Return a hardware profile of the test suite (a ``support.profile.Profile``)."""
    sys.path[:0] = [str(REPO / "tests"), str(REPO)]
    from support.profile import PROFILES

    if name not in PROFILES:
        raise BenchError(f"profile is {name!r}, expected one of {', '.join(sorted(PROFILES))}")
    return PROFILES[name]()


def with_nodes(profile: Any, nodes: list[tuple[str, int]]) -> Any:
    """Return a profile whose NUMA nodes have these CPU lists and bytes of memory."""
    from support.profile import NodeProfile

    return dataclasses.replace(profile, nodes=tuple(NodeProfile(cpus, size) for cpus, size in nodes))


def render(profile: Any, folder: Path) -> None:
    """Write what the replayed tools of a node print, and its /sys and /proc, into a new folder."""
    from support import render_rccl, render_smi, render_sys

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    renderers = (render_smi, render_sys, render_rccl)
    outputs = {k: v for renderer in renderers for k, v in renderer.render_commands(profile).items()}
    for call, (stdout, stderr, code) in outputs.items():
        said = folder / "outputs" / call
        said.mkdir(parents=True)
        for name, text in (("stdout", stdout), ("stderr", stderr), ("code", f"{code}\n")):
            (said / name).write_text(text)
    shutil.copy(REPO / "molecule/replay/replay", folder / "bin/replay")
    (folder / "bin/replay").chmod(0o755)
    render_sys.write_tree(profile, folder / "root")
    (folder / "profile").write_text(profile.name + "\n")


def nodes_here(profile: Any) -> list[tuple[str, int]]:
    """Return the NUMA nodes of a profile as a container shows them: CPU list and bytes of memory of each."""
    # NUMA node 0 has this machine's own CPUs, so that binding to it is real; the others have numbers after them.
    real = online_cpus()
    nodes, following = [], max(real) + 1
    for number, numa in enumerate(profile.nodes):
        cpus = real if number == 0 else list(range(following, following + len(real)))
        following = max(following, max(cpus) + 1)
        nodes.append((",".join(map(str, cpus)), numa.mem_bytes))
    return nodes


def up(node: str, *, address: str, profile: str, suite: str = SUITE, network: str = "host") -> None:
    """Boot a node unless it runs."""
    name = image(suite)
    state = ask(["podman", "inspect", "--format", "{{.State.Running}} {{.ImageName}}", node]).stdout.split()
    stamp = NODES / node / "profile"
    if state == ["true", name] and stamp.is_file() and stamp.read_text().strip() == profile:
        return
    ask(["podman", "rm", "--force", "--time", "0", node])
    described = load_profile(profile)
    folder = NODES / node
    render(with_nodes(described, nodes_here(described)), folder)
    say(f"booting {node} ({profile}) at {address}")
    run(
        f"booting {node}",
        podman(
            "run",
            "--detach",
            "--name",
            node,
            "--hostname",
            node,
            "--label",
            LABEL,
            "--systemd=always",
            f"--network={network}",
            "--privileged",
            "--shm-size=4g",
            *weight(),
            *limits(),
            "--volume",
            f"{folder}:/opt/replay:ro",
            name,
        ),
        hint="`podman info` tells what it finds wrong with this machine.",
    )
    deadline = time.monotonic() + 60
    while (word := ask(["podman", "exec", node, "systemctl", "is-system-running"]).stdout.strip()) != "running":
        if time.monotonic() > deadline or word == "degraded":
            failed = ask(["podman", "exec", node, "systemctl", "--failed", "--plain", "--no-legend"]).stdout.strip()
            raise BenchError(f"{node} is {word or 'not answering'} after its boot, expected running; failed: {failed}")
        time.sleep(0.3)
    # The stand-ins of the device nodes: writable by group render, as udev makes the real ones.
    devices = ["/dev/kfd", *(f"/dev/dri/renderD{128 + number}" for number in range(count_gpus(folder)))]
    rules = "".join(f"c {path} 0660 root render - 1:3\\n" for path in devices)
    script = f"mkdir -p /dev/dri; printf '{rules}' > /run/replay.conf; systemd-tmpfiles --create /run/replay.conf"
    run(f"making the device nodes of {node}", ["podman", "exec", node, "sh", "-c", script])


def count_gpus(folder: Path) -> int:
    """Count the GPUs of a rendered node: those PCI devices of AMD that have VRAM."""
    devices = folder / "root/sys/bus/pci/devices"
    return sum((device / "mem_info_vram_total").exists() for device in devices.iterdir())


def down(names: list[str]) -> None:
    """Remove nodes; without names every node, machine, image and file of ours."""
    everything = not names
    if everything:
        run("removing the machines", [sys.executable, str(REPO / "molecule/bench/machine.py"), "down"])
    if not shutil.which("podman"):
        return
    listing = ["podman", "ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}"]
    names = names or ask(listing).stdout.split()
    for name in names:
        ask(podman("rm", "--force", "--time", "10", name))
        shutil.rmtree(NODES / name, ignore_errors=True)
    if everything:
        listing = ["podman", "images", "--format", "{{.Repository}}:{{.Tag}}", "localhost/instinct-fleet-node"]
        for name in ask(listing).stdout.split():
            run(f"removing {name}", ["podman", "rmi", "--force", name])
        say("no node, image or process of ours is left; the downloads stay in .cache/")


def playbook(name: str, inventory: str = "inventories/demo", *extra: str) -> int:
    """Run a playbook of the project and return its exit code; its output goes to the terminal."""
    argv = [str(VENV / "bin/ansible-playbook"), name, "-i", inventory, *extra]
    env = {**os.environ, "PATH": f"{VENV / 'bin'}:{os.environ.get('PATH', '')}"}
    return subprocess.run(argv, cwd=REPO, env=env, check=False).returncode


def models() -> None:
    """Train the tiny models in a container of the node image, so that the Python of this machine does not matter."""
    recipe = hashlib.sha256((REPO / "molecule/bench/tiny_model.py").read_bytes()).hexdigest()
    stamp = MODELS / "made-from"
    if stamp.is_file() and stamp.read_text() == recipe:
        return
    say("training the tiny models")
    code = "from instinct_fleet.runtime_sets import describe; print(describe('cpu')['release'])"
    release = run("reading the pins", [str(VENV / "bin/python"), "-c", code]).strip()
    MODELS.mkdir(parents=True, exist_ok=True)
    script = (
        f"python3 -m venv /tools && /tools/bin/pip install -q --no-index --find-links /wheels/{release} uv && "
        f"/tools/bin/uv venv -q --python python3 /train && /tools/bin/uv pip install -q --python /train/bin/python "
        f"--no-cache --offline --no-index --find-links /wheels/{release} torch transformers tokenizers safetensors && "
        "/train/bin/python /src/tiny_model.py /models"
    )
    run(
        "training the tiny models",
        podman(
            "run",
            "--rm",
            *limits(),
            "--network=none",
            "--label",
            LABEL,
            "--volume",
            f"{WHEELHOUSE}:/wheels:ro",
            "--volume",
            f"{REPO / 'molecule/bench'}:/src:ro",
            "--volume",
            f"{MODELS}:/models",
            image(),
            "sh",
            "-c",
            script,
        ),
    )
    stamp.write_text(recipe)


def wheelhouse() -> None:
    """Make the wheelhouse of the runtime set that the nodes run."""
    if playbook("playbooks/build.yml") != 0:
        raise BenchError("the wheelhouse could not be made; the message above says why")


def demo() -> int:
    """Deploy a real vLLM on a simulated node with the project's own playbook."""
    started = time.monotonic()
    install_packages()
    up(DEMO_NODE, address=DEMO_ADDRESS, profile="mi300x_8")
    wheelhouse()
    models()
    code = playbook("site.yml")
    if code == 0:
        say(f"done in {time.monotonic() - started:.0f} s; `make demo-down` removes it")
    return code


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("setup", "browser", "image", "models", "demo", "unit-all"):
        commands.add_parser(name)
    one = commands.add_parser("up")
    one.add_argument("name")
    one.add_argument("--address", required=True)
    one.add_argument("--profile", default="mi300x_8")
    one.add_argument("--suite", default="", help=f"Debian release of the node, {SUITE} unless given")
    one.add_argument("--network", choices=["host", "none"], default="host")
    commands.add_parser("down").add_argument("names", nargs="*")
    args = parser.parse_args()
    for value in [getattr(args, "name", ""), *getattr(args, "names", [])]:
        if value and not re.fullmatch(r"[a-z0-9][a-z0-9-]*", value):
            parser.error(f"name is {value!r}, expected lower case letters, digits and dashes")
    try:
        if args.command == "setup":
            setup()
        elif args.command == "browser":
            browser()
        elif args.command == "image":
            install_packages()
            image()
        elif args.command == "models":
            wheelhouse()
            models()
        elif args.command == "up":
            install_packages()
            suite = args.suite or SUITE
            up(args.name, address=args.address, profile=args.profile, suite=suite, network=args.network)
        elif args.command == "unit-all":
            unit_all()
        elif args.command == "down":
            down(args.names)
        else:
            return demo()
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; `make demo-down` removes what was started", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
