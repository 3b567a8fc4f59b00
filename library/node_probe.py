#!/usr/bin/python
# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Read-only collection of everything that the roles decide with, in one round trip."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_probe
short_description: Read the raw topology, tools and state of a GPU node in one call
description:
  - Runs the AMD tools and reads the kernel's files, and returns what they said, word for word.
  - It decides nothing. Nothing that a node lacks is an error of this module, since absence is data.
  - It changes nothing and therefore runs in check mode.
options:
  commands:
    description:
      - Which tool calls to make, each an argv list. The default is what topology and policy need.
      - A tool is looked for on PATH and then in O(tool_paths).
    type: list
    elements: list
  tool_paths:
    description: Directories that hold ROCm's tools, since a non-login shell does not have them on PATH.
    type: list
    elements: path
    default: [/opt/rocm/bin, /opt/rocm/core/bin, /usr/local/bin]
  timeout:
    description: Seconds that all commands together may take. One that does not end is reported as such.
    type: int
    default: 60
  root:
    description: Where V(/sys) and V(/proc) of the hardware are read. Another value reads a recorded tree.
    type: path
    default: /
  service_user:
    description: The user whose groups and rights on the device nodes are reported.
    type: str
    default: vllm
  files:
    description: Files whose checksum, owner, group and mode are reported.
    type: list
    elements: path
    default: []
  paths:
    description:
      - Small text files whose content is reported.
      - A path that holds a V(*) is a pattern; each file that matches is reported under its own path.
    type: list
    elements: path
    default: []
  filesystems:
    description: Paths whose file system's free space is reported. Of one that is not there, the nearest folder counts.
    type: list
    elements: path
    default: []
  programs:
    description: Programs whose full path is reported.
    type: list
    elements: str
    default: []
  packages:
    description: Names of system packages whose versions are reported.
    type: list
    elements: str
    default: []
  units:
    description:
      - systemd units whose state and processes are reported.
      - A name that holds a V(*) is a pattern that matches loaded units.
    type: list
    elements: str
    default: []
  settle:
    description: Seconds to wait for start and stop jobs of O(units) to end before anything is read.
    type: int
    default: 0
author:
  - instinct-fleet contributors (@instinct-fleet)
attributes:
  check_mode:
    support: full
    description: Nothing is changed in any mode.
  diff_mode:
    support: none
    description: Nothing is changed.
"""

EXAMPLES = r"""
- name: Read the node
  node_probe:
    service_user: vllm
    units: [vllm-qwen.service]
  register: node
"""

RETURN = r"""
probe:
  description: What was read. Every text is as the tool or the kernel gave it.
  returned: always
  type: dict
  contains:
    schema:
      description: Version of this document, V(1).
      type: int
    hostname:
      description: Name of the host that was read.
      type: str
    collected_at:
      description: UTC time of the collection.
      type: str
    simulated:
      description: Whether the machine says of itself that its GPUs are replayed.
      type: bool
    commands:
      description: One entry a call, keyed by the call as typed.
      type: dict
    kfd:
      description: Relative path below the KFD topology folder to text, and the errors of unreadable files.
      type: dict
    pci:
      description: One entry for each AMD device, network card and bridge, keyed by address.
      type: dict
    numa:
      description: CPU list, distances and memory of each NUMA node.
      type: dict
    cpu:
      description: Online CPUs, SMT state and number of sockets.
      type: dict
    proc:
      description: Text of the files below /proc that decisions need.
      type: dict
    sysctl:
      description: Effective values.
      type: dict
    environment:
      description: Lines of the system's environment files that set a GPU variable.
      type: dict
    access:
      description: Groups of the service user and its rights on each device node.
      type: dict
    files:
      description: Checksum, owner, group and mode, or null where the file is absent.
      type: dict
    paths:
      description: Content of the files asked for, or null where the file is absent.
      type: dict
    filesystems:
      description: Free bytes and inodes, and device number, of the file system of each path asked for.
      type: dict
    programs:
      description: Full path of each program asked for, or null.
      type: dict
    libc:
      description: Name and version of the C library, or null.
      type: str
    packages:
      description: Installed version of each package asked for, or null.
      type: dict
    units:
      description: State of each unit, and affinity, memory policy and GPU variables of its processes.
      type: dict
    seconds:
      description: What the collection took.
      type: float
"""

import glob
import grp
import hashlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import threading
import time

from ansible.module_utils.basic import AnsibleModule

SCHEMA = 1

DEFAULT_COMMANDS = [
    ["amd-smi", "topology", "--json"],
    ["amd-smi", "static", "--json"],
    ["amd-smi", "version", "--json"],
    ["amd-smi", "partition", "--json"],
    ["amd-smi", "list", "--json"],
    ["amd-smi", "xgmi", "-l"],
    ["amd-smi", "metric", "--ecc", "--ecc-blocks", "--json"],
    ["amd-smi", "metric", "--mem-usage", "--json"],
    ["amd-smi", "process", "--json"],
    ["rocm-smi", "--showtopo", "--json"],
    ["rocm-smi", "--showtopo"],
    ["rocminfo"],
    ["lspci", "-D", "-vv", "-d", "1002:"],
]

SYSCTLS = [
    "kernel.numa_balancing",
    "vm.swappiness",
    "vm.zone_reclaim_mode",
    "vm.overcommit_memory",
    "kernel.sched_autogroup_enabled",
]

PCI_FIELDS = [
    "vendor",
    "device",
    "class",
    "numa_node",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "mem_info_vram_total",
    "mem_info_vram_used",
    "current_compute_partition",
    "current_memory_partition",
]

#: Variables that change what ROCm's runtime sees; one set anywhere on the node is worth knowing.
GPU_VARIABLES = re.compile(
    r"^\s*(?:export\s+|DefaultEnvironment=|Environment=)?[\"']?"
    r"((?:HSA_OVERRIDE_GFX_VERSION|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL)"
    r"[A-Z0-9_]*\s*=.*)$"
)
ENVIRONMENT_FILES = [
    "/etc/environment",
    "/etc/profile",
    "/etc/profile.d/*.sh",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/security/pam_env.conf",
    "/etc/environment.d/*.conf",
    "/etc/systemd/system.conf",
    "/etc/systemd/system.conf.d/*.conf",
    "/root/.bashrc",
    "/root/.profile",
]
#: A tool that prints more than this has gone wrong; the text is cut there and marked.
MAX_OUTPUT = 4 * 1024 * 1024


def read_text(path, limit=1024 * 1024):
    """Return ``(text, None)`` or ``(None, reason)``. Never raises for what a file can do to us."""
    try:
        with open(path, "rb") as handle:
            return handle.read(limit).decode("utf-8", "replace"), None
    except OSError as exc:
        return None, os.strerror(exc.errno) if exc.errno else str(exc)


def find_tool(name, tool_paths):
    """Return the full path of a tool, or None. /sbin is searched too: lspci lives there on some systems."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin:" + ":".join(tool_paths)
    return shutil.which(name, path=path)


def run_command(argv, tool_paths, deadline):
    """Run one tool and return what it said. A tool that is missing, hangs or dies is a result like any other."""
    result = {
        "argv": argv,
        "path": find_tool(argv[0], tool_paths),
        "rc": None,
        "stdout": "",
        "stderr": "",
        "error": None,
    }
    if result["path"] is None:
        result["error"] = "not found"
        return result
    env = dict(os.environ, LC_ALL="C.UTF-8", LANG="C.UTF-8", TERM="dumb", COLUMNS="400")
    # The caller's own selection of GPUs must not decide what the node is said to have. What the *system* sets is
    # read from its environment files instead.
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        env.pop(name, None)
    env["PATH"] = env.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin:" + ":".join(tool_paths)
    try:
        process = subprocess.run(
            [result["path"], *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=max(0.1, deadline - time.monotonic()),
            env=env,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        result["error"] = "no end within the time limit"
        result["stdout"] = (exc.stdout or b"")[:MAX_OUTPUT].decode("utf-8", "replace")
        result["stderr"] = (exc.stderr or b"")[:MAX_OUTPUT].decode("utf-8", "replace")
        return result
    except OSError as exc:
        result["error"] = "cannot be run: %s" % (exc.strerror or exc)
        return result
    result["rc"] = process.returncode
    result["stdout"] = process.stdout[:MAX_OUTPUT].decode("utf-8", "replace")
    result["stderr"] = process.stderr[:MAX_OUTPUT].decode("utf-8", "replace")
    if len(process.stdout) > MAX_OUTPUT:
        result["error"] = "output cut at %d bytes" % MAX_OUTPUT
    return result


def run_commands(commands, tool_paths, timeout):
    """Run all tools side by side: each mostly waits for the driver, and together they must stay under two seconds."""
    deadline = time.monotonic() + timeout
    results = {}

    def work(argv):
        results[" ".join(argv)] = run_command(argv, tool_paths, deadline)

    threads = [threading.Thread(target=work, args=([str(a) for a in argv],)) for argv in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {key: results[key] for key in sorted(results)}


def read_kfd(root):
    """Read the KFD topology tree, with the generation before and after, so that a change meanwhile is seen."""
    base = os.path.join(root, "sys/class/kfd/kfd/topology")
    files, errors = {}, {}
    before = read_text(os.path.join(base, "generation_id"))[0]
    wanted = re.compile(
        r"^(generation_id|system_properties|nodes/\d+/(gpu_id|name|properties)"
        r"|nodes/\d+/(io_links|p2p_links|mem_banks)/\d+/properties)$"
    )
    for folder, _dirs, names in os.walk(base, followlinks=True):
        for name in names:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, base)
            if not wanted.match(relative):
                continue
            text, reason = read_text(path)
            if text is None:
                errors[relative] = reason
            else:
                files[relative] = text
    return {
        "present": os.path.isdir(base),
        "files": {key: files[key] for key in sorted(files)},
        "errors": errors,
        "generation_before": before,
        "generation_after": read_text(os.path.join(base, "generation_id"))[0],
    }


def read_pci(root):
    """Read every AMD GPU, network card and bridge: real path, NUMA node, driver and link."""
    devices = {}
    base = os.path.join(root, "sys/bus/pci/devices")
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return devices
    for name in names:
        folder = os.path.join(base, name)
        vendor = (read_text(os.path.join(folder, "vendor"))[0] or "").strip()
        kind = (read_text(os.path.join(folder, "class"))[0] or "").strip()
        if vendor != "0x1002" and not kind.startswith(("0x02", "0x0604")):
            continue
        entry = {}
        for field in PCI_FIELDS:
            text, _reason = read_text(os.path.join(folder, field))
            entry[field] = text.strip() if text is not None else None
        real = os.path.realpath(folder)
        entry["path"] = "/" + os.path.relpath(real, root) if root != "/" else real
        driver = os.path.join(folder, "driver")
        entry["driver"] = os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else None
        ras = {}
        for path in sorted(glob.glob(os.path.join(folder, "ras", "*_err_count"))):
            ras[os.path.basename(path)] = read_text(path)[0]
        entry["ras"] = ras
        devices[name] = entry
    return devices


def read_numa(root):
    """Read CPU list, distances and memory of each NUMA node."""
    nodes = {}
    for folder in glob.glob(os.path.join(root, "sys/devices/system/node/node[0-9]*")):
        number = os.path.basename(folder)[4:]
        cpulist = read_text(os.path.join(folder, "cpulist"))[0]
        distance = read_text(os.path.join(folder, "distance"))[0]
        meminfo = read_text(os.path.join(folder, "meminfo"))[0]
        nodes[number] = {
            "cpulist": cpulist.strip() if cpulist is not None else None,
            "distance": distance.strip() if distance is not None else None,
            "meminfo": meminfo,
        }
    return {key: nodes[key] for key in sorted(nodes, key=int)}


def read_cpu(root):
    """Read which CPUs are online, whether SMT is on, and how many sockets there are."""
    base = os.path.join(root, "sys/devices/system/cpu")
    packages = set()
    for path in glob.glob(os.path.join(base, "cpu[0-9]*/topology/physical_package_id")):
        text = read_text(path)[0]
        if text is not None:
            packages.add(text.strip())
    online = read_text(os.path.join(base, "online"))[0]
    smt = read_text(os.path.join(base, "smt/active"))[0]
    return {
        "online": online.strip() if online is not None else None,
        "smt_active": smt.strip() if smt is not None else None,
        "sockets": len(packages) or None,
        "governor": read_text(os.path.join(base, "cpu0/cpufreq/scaling_governor"))[0],
        "transparent_hugepage": read_text(os.path.join(root, "sys/kernel/mm/transparent_hugepage/enabled"))[0],
    }


def read_environment():
    """Return the lines of the system's environment files, and of vLLM's units, that set a GPU variable."""
    found = {}
    patterns = [*ENVIRONMENT_FILES, "/etc/systemd/system/vllm-*.service", "/etc/systemd/system/vllm-*.service.d/*.conf"]
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)):
            text = read_text(path)[0] or ""
            lines = [m.group(1).strip() for m in map(GPU_VARIABLES.match, text.splitlines()) if m]
            if lines:
                found[path] = lines
    return found


def group_name(gid):
    """Return the name of a group, or its number as text where it has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def user_name(uid):
    """Return the name of a user, or its number as text where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_access(user):
    """Report the user's groups and what its classic file rights on the device nodes are."""
    result = {"user": user, "exists": False, "groups": [], "devices": {}}
    uid, gids = None, set()
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        entry = None
    if entry is not None:
        uid = entry.pw_uid
        gids = set(os.getgrouplist(user, entry.pw_gid))
        result["exists"] = True
        result["groups"] = sorted(group_name(g) for g in gids)
    result["group_ids"] = {}
    for name in ("render", "video"):
        try:
            result["group_ids"][name] = grp.getgrnam(name).gr_gid
        except KeyError:
            result["group_ids"][name] = None
    for path in ["/dev/kfd", *sorted(glob.glob("/dev/dri/renderD*"))]:
        try:
            info = os.stat(path)
        except OSError as exc:
            result["devices"][path] = {"error": exc.strerror}
            continue
        mode = info.st_mode & 0o777
        if uid is None:
            allowed = None
        elif uid == info.st_uid:
            allowed = mode & 0o600 == 0o600
        elif info.st_gid in gids:
            allowed = mode & 0o060 == 0o060
        else:
            allowed = mode & 0o006 == 0o006
        result["devices"][path] = {
            "mode": "%04o" % mode,
            "owner": user_name(info.st_uid),
            "group": group_name(info.st_gid),
            "read_write": allowed,
        }
    if "/dev/kfd" not in result["devices"]:
        result["devices"]["/dev/kfd"] = {"error": "No such file or directory"}
    return result


def read_file_state(path):
    """Return checksum, owner, group and mode of a file, or None where it is absent."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    state = {
        "owner": user_name(info.st_uid),
        "group": group_name(info.st_gid),
        "mode": "%04o" % (info.st_mode & 0o7777),
        "checksum": None,
    }
    if os.path.isfile(path):
        digest = hashlib.sha256()
        try:
            with open(path, "rb") as handle:
                for block in iter(lambda: handle.read(1 << 20), b""):
                    digest.update(block)
            state["checksum"] = digest.hexdigest()
        except OSError:
            pass
    return state


def read_packages(names):
    """Return the installed version of each package, by the package manager that the host has."""
    versions = dict.fromkeys(names)
    if not names:
        return versions
    if shutil.which("dpkg-query"):
        argv = ["dpkg-query", "-W", "-f", "${Package}\t${Version}\t${db:Status-Abbrev}\n", *names]
    elif shutil.which("rpm"):
        argv = ["rpm", "-q", "--qf", "%{NAME}\t%{VERSION}-%{RELEASE}\tii\n", *names]
    else:
        return versions
    process = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    for line in process.stdout.decode("utf-8", "replace").splitlines():
        parts = line.split("\t")
        # The second letter is the state; the first is what is wanted, "h" for a held package.
        if len(parts) == 3 and parts[2][1:2] == "i":
            versions[parts[0]] = parts[1]
    return versions


def read_process(pid):
    """Report what binds one process. A process that ends meanwhile gives None."""
    status, reason = read_text("/proc/%d/status" % pid)
    if status is None or reason:
        return None
    fields = dict(re.findall(r"^(\w+):\t(.*)$", status, re.M))
    cmdline = (read_text("/proc/%d/cmdline" % pid)[0] or "").replace("\0", " ").strip()
    maps = read_text("/proc/%d/numa_maps" % pid, 1 << 16)[0] or ""
    # The heap and the stack are private memory of this process, so their policy is the one it allocates with.
    policies = [
        line.split()[1] for line in maps.splitlines() if len(line.split()) > 1 and ("heap" in line or "stack" in line)
    ]
    environ = read_text("/proc/%d/environ" % pid)[0] or ""
    variables = {}
    for item in environ.split("\0"):
        name, _sep, value = item.partition("=")
        if name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "VLLM_PORT"):
            variables[name] = value
    return {
        "pid": pid,
        "ppid": int(fields.get("PPid", "0")),
        "name": fields.get("Name", ""),
        # Arguments are cut: they are here to tell workers apart, and a secret must never be on a command line.
        "cmdline": cmdline[:200],
        "uid": int(fields.get("Uid", "0").split()[0]),
        "cpus_allowed": fields.get("Cpus_allowed_list"),
        "mems_allowed": fields.get("Mems_allowed_list"),
        "memory_policies": sorted(set(policies)),
        "environment": variables,
        "environment_readable": bool(environ.strip("\0")),
    }


def unit_pids(control_group):
    """Return the process ids of a unit's control group, whichever cgroup layout the host has."""
    pids = set()
    for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"):
        for folder, _dirs, names in os.walk(base + control_group):
            if "cgroup.procs" in names:
                text = read_text(os.path.join(folder, "cgroup.procs"))[0] or ""
                pids.update(int(p) for p in text.split())
    return sorted(pids)


UNIT_PROPERTIES = [
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "MainPID",
    "NRestarts",
    "ExecMainStatus",
    "Result",
    "ControlGroup",
    "ActiveEnterTimestamp",
    "NeedDaemonReload",
    # Which release it runs: one that a unit names must not be removed.
    "ExecStart",
]


def read_units(names):
    """Report the state and the processes of units. Without systemd each unit is reported as unknown (None)."""
    units = dict.fromkeys(n for n in names if "*" not in n)
    if not names or not shutil.which("systemctl"):
        return units
    process = subprocess.run(
        ["systemctl", "show", "--no-pager", "--property=" + ",".join(UNIT_PROPERTIES), "--", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    for block in process.stdout.decode("utf-8", "replace").strip().split("\n\n"):
        state = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if not state.get("Id"):
            continue
        group = state.get("ControlGroup") or ""
        processes = [read_process(pid) for pid in unit_pids(group)] if group not in ("", "/") else []
        state["processes"] = [p for p in processes if p is not None]
        units[state["Id"]] = state
    return units


def read_paths(patterns):
    """Return the content of small text files by path; a pattern gives each file that matches it."""
    found = {}
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)) if "*" in pattern else [pattern]:
            found[path] = read_text(path)[0]
    return found


def read_filesystem(path):
    """Return the free space where a path is or would be."""
    place = path
    while not os.path.isdir(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    try:
        info = os.statvfs(place)
        return {
            "free_bytes": info.f_bavail * info.f_frsize,
            # A file system without a fixed number of inodes reports none at all.
            "free_inodes": info.f_favail if info.f_files else None,
            "device": os.stat(place).st_dev,
        }
    except OSError as exc:
        return {"error": exc.strerror}


def libc_version():
    """Return what the C library calls itself, as "glibc 2.36", or None."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        return None


def settle(names, seconds):
    """Wait until systemd has no job left for the units: each start has ended well or badly.

    A unit whose start failed and that will be tried again has no job meanwhile, so a failing start ends the wait.
    """
    deadline = time.monotonic() + seconds
    while names and shutil.which("systemctl") and time.monotonic() < deadline:
        process = subprocess.run(
            ["systemctl", "show", "--no-pager", "--property=Job", "--", *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        jobs = [line for line in process.stdout.decode().split() if line not in ("Job=", "Job=0")]
        if not jobs:
            return
        time.sleep(1)


def collect(params):
    """Return the whole document; see RETURN."""
    settle(params["units"], params.get("settle", 0))
    started = time.monotonic()
    root = params["root"]
    proc = {}
    for name in ("cmdline", "version", "meminfo"):
        proc[name] = read_text(os.path.join(root, "proc", name))[0]
        if proc[name] is None:
            proc[name] = read_text("/proc/" + name)[0]
    sysctl = {}
    for name in SYSCTLS:
        text = read_text(os.path.join(root, "proc/sys", name.replace(".", "/")))[0]
        if text is None and root != "/":
            text = read_text("/proc/sys/" + name.replace(".", "/"))[0]
        sysctl[name] = text.strip() if text is not None else None
    commands = params["commands"] if params["commands"] is not None else DEFAULT_COMMANDS
    return {
        "schema": SCHEMA,
        "hostname": socket.gethostname(),
        "collected_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "simulated": os.path.exists("/etc/instinct-fleet-simulated"),
        "commands": run_commands(commands, params["tool_paths"], params["timeout"]),
        "kfd": read_kfd(root),
        "pci": read_pci(root),
        "numa": read_numa(root),
        "cpu": read_cpu(root),
        "proc": proc,
        "kernel": os.uname().release,
        "sysctl": sysctl,
        "module": {
            "amdgpu": os.path.isdir(os.path.join(root, "sys/module/amdgpu")),
            "initstate": (read_text(os.path.join(root, "sys/module/amdgpu/initstate"))[0] or "").strip() or None,
            "version": (read_text(os.path.join(root, "sys/module/amdgpu/version"))[0] or "").strip() or None,
        },
        "environment": read_environment(),
        "access": read_access(params["service_user"]),
        "files": {path: read_file_state(path) for path in params["files"]},
        "paths": read_paths(params["paths"]),
        "filesystems": {path: read_filesystem(path) for path in params.get("filesystems", [])},
        "programs": {name: find_tool(name, params["tool_paths"]) for name in params.get("programs", [])},
        "libc": libc_version(),
        "packages": read_packages(params["packages"]),
        "units": read_units(params["units"]),
        "seconds": round(time.monotonic() - started, 3),
    }


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "commands": {"type": "list", "elements": "list"},
            "tool_paths": {
                "type": "list",
                "elements": "path",
                "default": ["/opt/rocm/bin", "/opt/rocm/core/bin", "/usr/local/bin"],
            },
            "timeout": {"type": "int", "default": 60},
            "root": {"type": "path", "default": "/"},
            "service_user": {"type": "str", "default": "vllm"},
            "files": {"type": "list", "elements": "path", "default": []},
            "paths": {"type": "list", "elements": "path", "default": []},
            "filesystems": {"type": "list", "elements": "path", "default": []},
            "programs": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "settle": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, probe=collect(module.params))


if __name__ == "__main__":
    main()
