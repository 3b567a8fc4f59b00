"""What is bound is really bound: read from the machine's own /proc, without the code of the role."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import testinfra

REPO = Path(__file__).resolve().parents[4]
NAME = "two-socket-default"
SSH_CONFIG = REPO / ".cache/machines" / NAME / "ssh_config"
testinfra_hosts = [f"ssh://{NAME}?ssh_config={SSH_CONFIG}&timeout=60"]

#: The machine has one CPU on each node.
CPUS = {0: "0", 1: "1"}
#: PCI address of each GPU, in the order of its number, and the NUMA node that it was put on.
GPUS = {"0c": 0, "22": 0, "38": 0, "5c": 0, "9f": 1, "af": 1, "bf": 1, "df": 1}
ACROSS = {
    "name": "across",
    "model": "/var/lib/vllm/models/tiny",
    "served_model_name": "tiny",
    "tensor_parallel_size": 8,
    "port": 8002,
    "smoke_test": {"question": "How many workers are there?", "answer": "8 workers"},
}
#: Prints the processes of a unit: their title, CPUs, visible GPUs, and pages by node and policy of private memory.
LOOK = r"""
for unit in %s; do
    for pid in $(cat /sys/fs/cgroup/system.slice/$unit/cgroup.procs); do
        echo "unit $unit $(tr '\0' ' ' < /proc/$pid/cmdline)"
        grep Cpus_allowed_list /proc/$pid/status
        tr '\0' '\n' < /proc/$pid/environ | grep HIP_VISIBLE_DEVICES
        grep anon= /proc/$pid/numa_maps
    done
done
"""


@dataclass(frozen=True)
class Process:
    """One process as the kernel shows it; ``pages`` is NUMA node -> pages of private memory."""

    title: str
    cpus: str
    gpus: str
    policies: frozenset[str]
    pages: dict[int, int]

    def share(self, node: int) -> float:
        """Return the part of its private memory that lies on a node."""
        assert sum(self.pages.values()) > 2000, f"{self.title} holds {self.pages} pages, too few to tell"
        return self.pages.get(node, 0) / sum(self.pages.values())


def look(host: Any, *instances: str) -> dict[str, dict[str, Process]]:
    """Read the processes of units: instance -> title -> process; the API server's title is ``server``."""
    text = host.check_output(LOOK.replace("%s", " ".join(f"vllm-{name}.service" for name in instances)))
    found: dict[str, dict[str, Process]] = {name: {} for name in instances}
    for block in re.split(r"^unit ", text, flags=re.M)[1:]:
        head, *lines = block.splitlines()
        unit, _space, command = head.partition(" ")
        named = re.match(r"VLLM::(\w+)", command)
        title = named.group(1) if named else "server"
        maps = [line for line in lines if "anon=" in line]
        pages: dict[int, int] = {}
        for node, count in re.findall(r" N(\d+)=(\d+)", "\n".join(maps)):
            pages[int(node)] = pages.get(int(node), 0) + int(count)
        found[unit.removeprefix("vllm-").removesuffix(".service")][title] = Process(
            title=title,
            cpus=next(line.split("\t")[1] for line in lines if line.startswith("Cpus_allowed_list")),
            gpus=next((line.partition("=")[2] for line in lines if line.startswith("HIP_VISIBLE_DEVICES")), ""),
            policies=frozenset(line.split()[1] for line in maps),
            pages=pages,
        )
    return found


def assert_on_one_node(processes: dict[str, Process], node: int, gpus: str) -> None:
    """Everything of an instance inside one NUMA node: CPUs, policy, pages and GPUs."""
    assert set(processes) == {"server", "EngineCore", *(f"Worker_TP{rank}" for rank in range(4))}
    for process in processes.values():
        assert process.cpus == CPUS[node], process
        assert process.policies == {f"prefer:{node}"}, process
        assert process.share(node) > 0.99, process
        assert process.gpus == gpus, process


def assert_across(processes: dict[str, Process]) -> None:
    """An instance over both: the server interleaved, the engine over both, each worker on the node of its GPU."""
    assert set(processes) == {"server", "EngineCore", *(f"Worker_TP{rank}" for rank in range(8))}
    server = processes["server"]
    assert server.cpus == "0-1"
    assert server.policies == {"interleave:0-1"}
    assert 0.4 < server.share(0) < 0.6, server
    assert processes["EngineCore"].cpus == "0-1"
    assert processes["EngineCore"].policies == {"bind:0-1"}
    for rank in range(8):
        worker = processes[f"Worker_TP{rank}"]
        node = list(GPUS.values())[rank]
        assert worker.cpus == CPUS[node], worker
        assert worker.policies == {f"bind:{node}"}, worker
        # Some pages are older than the binding: those of the start of the program.
        assert worker.share(node) > 0.99, worker
        assert worker.gpus == "0,1,2,3,4,5,6,7"


def converge(*options: str) -> subprocess.CompletedProcess[str]:
    """Run the scenario's playbook again."""
    inventory = Path(os.environ["MOLECULE_INVENTORY_FILE"]).parent
    argv = ["ansible-playbook", "-i", str(inventory), str(REPO / "molecule/two_socket/default/converge.yml"), *options]
    # What it says is compared, without a terminal's colours.
    env = {**os.environ, "ANSIBLE_FORCE_COLOR": "false", "ANSIBLE_NOCOLOR": "true"}
    return subprocess.run(argv, cwd=REPO, env=env, capture_output=True, text=True, check=False)


def wait_until_active(host: Any, *instances: str) -> None:
    """Wait until units are active; fail with their journal when one is not to become so."""
    units = " ".join(f"vllm-{name}.service" for name in instances)
    deadline = time.monotonic() + 180
    while set(host.run(f"systemctl is-active {units}").stdout.split()) != {"active"}:
        if time.monotonic() > deadline:
            pytest.fail(str(host.run(f"systemctl status --no-pager {units}; journalctl --no-pager -n 40").stdout))
        time.sleep(1)


def test_the_machine_has_two_sockets_and_the_gpus_behind_them(host: Any) -> None:
    """The ground that all else stands on, and that node_probe read it as it is."""
    listing = host.check_output(
        "cat /sys/devices/system/node/node0/distance /sys/devices/system/node/node1/cpulist /proc/cmdline;"
        "cd /sys/bus/pci/devices; for d in *; do echo $d $(cat $d/numa_node) $(readlink -f $d); done"
    ).splitlines()
    assert listing[:2] == ["10 32", "1"]
    devices = {line.split()[0]: line.split()[1:] for line in listing[3:]}
    [bundle] = (Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "bundles").glob(f"{NAME}-*.tar.gz")
    with tarfile.open(bundle) as archive:
        probe = json.load(archive.extractfile("probe.json") or pytest.fail("the bundle holds no probe.json"))
    assert probe["proc"]["cmdline"] == listing[2] + "\n"
    assert "iommu=pt" in listing[2]
    assert {n: (v["cpulist"], v["distance"]) for n, v in probe["numa"].items()} == {
        "0": ("0", "10 32"),
        "1": ("1", "32 10"),
    }
    for bus, node in GPUS.items():
        bdf = f"0000:{bus}:00.0"
        assert devices[bdf] == [
            str(node),
            f"/sys/devices/pci0000:{int(bus, 16) - 1:02x}/0000:{int(bus, 16) - 1:02x}:00.0/{bdf}",
        ]
        assert [probe["pci"][bdf]["numa_node"], probe["pci"][bdf]["path"]] == devices[bdf]


def test_an_instance_in_each_socket_stays_there(host: Any) -> None:
    seen = look(host, "left", "right")
    assert_on_one_node(seen["left"], 0, "0,1,2,3")
    assert_on_one_node(seen["right"], 1, "4,5,6,7")


def test_a_wrong_binding_stops_the_role_with_both_values(host: Any) -> None:
    """Bind one instance to the other socket and the other one to nothing, behind the role's back."""
    serve = "/opt/replay/bin/vllm serve --config /etc/vllm"
    starts = {"left": f"/usr/bin/numactl --cpunodebind=1 --membind=1 {serve}/left.yaml", "right": f"{serve}/right.yaml"}
    script = ""
    for name, start in starts.items():
        # Below /run, so that the reboot of the next test takes them away.
        folder = f"/run/systemd/system/vllm-{name}.service.d"
        script += f"mkdir -p {folder}; printf '[Service]\\nExecStart=\\nExecStart={start}\\n' > {folder}/wrong.conf; "
    host.check_output(f"{script} systemctl daemon-reload && systemctl restart vllm-left vllm-right")
    seen = look(host, "left", "right")
    assert seen["left"]["Worker_TP3"].share(1) > 0.99, "the drop-in did not do what the test is about"
    run = converge()
    assert run.returncode == 2, run.stdout
    # Molecule's own settings send failures to standard error.
    text = " ".join((run.stdout + run.stderr).split())
    for process in ("VLLM::Worker_TP3", "VLLM::EngineCore"):
        assert re.search(rf"{process} \(pid \d+\) has memory policy bind:1, planned prefer:0", text), run.stdout
        assert re.search(rf"{process} \(pid \d+\) may run on CPUs 1, planned 0", text), run.stdout
        assert re.search(rf"{process} \(pid \d+\) has memory policy default, planned prefer:1", text), run.stdout
        assert re.search(rf"{process} \(pid \d+\) may run on CPUs 0-1, planned 1", text), run.stdout


def test_a_reboot_brings_the_binding_back(host: Any) -> None:
    before = host.check_output("cat /proc/sys/kernel/random/boot_id")
    host.run("systemctl reboot")
    deadline = time.monotonic() + 300
    while True:
        # A connection of its own: the shared one hangs on the machine that went away.
        argv = ["ssh", "-F", str(SSH_CONFIG), "-o", "ControlPath=none", "-o", "ConnectTimeout=10", NAME]
        answer = subprocess.run(
            [*argv, "cat /proc/sys/kernel/random/boot_id"], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0 and answer.stdout.strip() != before:
            break
        assert time.monotonic() < deadline, f"no answer after the reboot: {answer.stderr}"
        time.sleep(1)
    again = testinfra.get_host(testinfra_hosts[0])
    wait_until_active(again, "left", "right")
    seen = look(again, "left", "right")
    assert_on_one_node(seen["left"], 0, "0,1,2,3")
    assert_on_one_node(seen["right"], 1, "4,5,6,7")


def test_one_instance_over_both_sockets_binds_each_worker(host: Any) -> None:
    run = converge("-e", json.dumps({"vllm_serve_instances": [ACROSS]}))
    assert run.returncode == 0, run.stdout
    assert_across(look(host, "across")["across"])
