#!/usr/bin/python3
"""Apply what does not survive a boot by itself, and tell what is in effect.

    tune-node apply    apply /etc/instinct-fleet/tuning.json, read it back, exit with 1 where the two differ
    tune-node show     print what is in effect, as JSON

Runs under the node's own Python, from 3.9 on, with nothing beside the standard library.
"""

import glob
import json
import os
import re
import subprocess
import sys

CONFIG = "/etc/instinct-fleet/tuning.json"


def read(path):
    """Return the text of a file without its last newline, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(1 << 16).strip()
    except OSError:
        return None


def write(path, text):
    """Write a value into a file of the kernel; say it where the kernel refuses."""
    try:
        # Without creating it: what the kernel does not have must stay missing.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb") as handle:
            handle.write(text.encode())
    except OSError as exc:
        print("tune-node: %s <- %s: %s" % (path, text, exc.strerror), file=sys.stderr)


def run(*argv):
    """Run a program; say it where it fails."""
    try:
        process = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    except OSError as exc:
        print("tune-node: %s: %s" % (argv[0], exc.strerror), file=sys.stderr)
        return
    if process.returncode != 0:
        said = process.stderr.decode("utf-8", "replace").strip()
        print("tune-node: %s: exit code %d: %s" % (" ".join(argv), process.returncode, said), file=sys.stderr)


def selected(text):
    """Return the word in brackets, as the kernel marks the choice in effect, or the whole text."""
    match = re.search(r"\[(\S+)\]", text or "")
    return match.group(1) if match else text


def summary(values):
    """Return one text for the values of many CPUs: `a`, `a (3), b (1)`, or None where there is none."""
    counts = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    if len(counts) < 2:
        return next(iter(counts), None)
    return ", ".join("%s (%d)" % (value, counts[value]) for value in sorted(counts))


def acs_registers(data):
    """Return (offset, value) of the control register of each ACS capability in a device's configuration space.

    PCI Express puts extended capabilities behind offset 0x100 as a linked list; ACS is number 0x0d and its control
    register is six bytes into it (PCI Express Base Specification, 7.7.8).
    """
    found, at, seen = [], 0x100, set()
    while at >= 0x100 and at + 8 <= len(data) and at not in seen:
        seen.add(at)
        head = int.from_bytes(data[at : at + 4], "little")
        if head in (0, 0xFFFFFFFF):
            break
        if head & 0xFFFF == 0x0D:
            found.append((at + 6, int.from_bytes(data[at + 6 : at + 8], "little")))
        at = head >> 20
    return found


class Node:
    """The node's files below a root, which a test replaces."""

    def __init__(self, root):
        """Remember the root."""
        self.root = root.rstrip("/")

    def path(self, name):
        """Return the real path of a file of the node."""
        return "%s/%s" % (self.root, name)

    def cpus(self, pattern):
        """Return the files that match below every CPU."""
        return sorted(glob.glob(self.path("sys/devices/system/cpu/cpu[0-9]*/" + pattern)))

    def acs(self):
        """Yield (path, offset, value) of every ACS control register."""
        for path in sorted(glob.glob(self.path("sys/bus/pci/devices/*/config"))):
            try:
                with open(path, "rb") as handle:
                    data = handle.read(4096)
            except OSError:
                continue
            for offset, value in acs_registers(data):
                yield path, offset, value

    def sysctl(self, name):
        """Return a value of sysctl, or None. The kernel puts a tab between several; they are asked for with a space."""
        text = read(self.path("proc/sys/" + name.replace(".", "/")))
        return None if text is None else " ".join(text.split())

    def swaps(self):
        """Return the names of what is swapped to."""
        lines = (read(self.path("proc/swaps")) or "").splitlines()
        return [line.split()[0] for line in lines[1:] if line.split()]

    def idle(self, numbers):
        """Return the state of the idle states that are to be off: `off`, `on`, a mix, or None where there is none."""
        values = []
        for number in numbers:
            values += [read(path) for path in self.cpus("cpuidle/state%s/disable" % number)]
        return summary("off" if value == "1" else "on" for value in values)

    def show(self, config):
        """Return what is in effect, each as text, or None where the node does not have it."""
        try:
            shm = os.statvfs(self.path("dev/shm"))
            shm_size = shm.f_blocks * shm.f_frsize
        except OSError:
            shm_size = None
        registers = [value for _path, _offset, value in self.acs()]
        swaps = self.swaps()
        huge = read(self.path("sys/kernel/mm/transparent_hugepage/enabled"))
        return {
            "sysctl": {name: self.sysctl(name) for name in sorted(config.get("sysctl", {}))},
            "transparent_hugepage": selected(huge),
            "governor": summary(read(path) for path in self.cpus("cpufreq/scaling_governor")),
            "idle_states": self.idle(config.get("idle_states", [])),
            "acs": summary("on" if value else "off" for value in registers),
            "swap": "on: " + ", ".join(swaps) if swaps else "off",
            "shm_size": None if shm_size is None else str(shm_size),
        }

    def apply(self, config):
        """Apply the configuration. What it does not name is left alone."""
        if config.get("load_amdgpu"):
            run("modprobe", "amdgpu")
        for name, value in sorted(config.get("sysctl", {}).items()):
            write(self.path("proc/sys/" + name.replace(".", "/")), value)
        if config.get("transparent_hugepage"):
            write(self.path("sys/kernel/mm/transparent_hugepage/enabled"), config["transparent_hugepage"])
        if config.get("governor"):
            for path in self.cpus("cpufreq/scaling_governor"):
                write(path, config["governor"])
        for number in config.get("idle_states", []):
            for path in self.cpus("cpuidle/state%s/disable" % number):
                write(path, "1")
        if config.get("acs") == "off":
            for path, offset, value in self.acs():
                if value:
                    with open(path, "r+b") as handle:
                        handle.seek(offset)
                        handle.write(b"\0\0")
        if config.get("swap") == "off" and self.swaps():
            run("swapoff", "--all")
        if config.get("shm_size"):
            run("mount", "-o", "remount,size=%s" % config["shm_size"], self.path("dev/shm"))

    def differences(self, config):
        """Return a line for each value in effect that is not the one wanted."""
        seen = self.show(config)
        pairs = [(name, value, seen["sysctl"][name]) for name, value in sorted(config.get("sysctl", {}).items())]
        for name in ("transparent_hugepage", "governor", "acs", "swap", "shm_size"):
            if config.get(name):
                pairs.append((name, config[name], seen[name]))
        if config.get("idle_states"):
            pairs.append(("idle_states", "off", seen["idle_states"]))
        return ["%s is %s, expected %s" % (name, now, wanted) for name, wanted, now in pairs if now != wanted]


def main(argv):
    """Entry point."""
    if len(argv) != 2 or argv[1] not in ("apply", "show"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(CONFIG, encoding="utf-8") as handle:
            config = json.load(handle)
    except (OSError, ValueError) as exc:
        print("tune-node: %s: %s" % (CONFIG, exc), file=sys.stderr)
        return 2
    node = Node(config.get("root", "/"))
    if argv[1] == "show":
        json.dump(node.show(config), sys.stdout, sort_keys=True)
        return 0
    node.apply(config)
    problems = node.differences(config)
    for problem in problems:
        print("tune-node: " + problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
