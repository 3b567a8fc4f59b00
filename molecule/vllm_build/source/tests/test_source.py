"""What a build leaves, and that it survives a killed connection and goes on after a failed component."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[4]
INVENTORY = Path(os.environ["MOLECULE_INVENTORY_FILE"]).parent
HERE = REPO / ".cache/build-scenario"
RELEASE, WORK = "/srv/wheelhouse/1.0.0-tiny", "/srv/build/1.0.0-tiny"
UNIT = "vllm-build-1.0.0-tiny.service"
testinfra_hosts = ["podman://build-source"]
ARGV = ["ansible-playbook", str(REPO / "playbooks/build.yml"), "-i", str(INVENTORY)]


def environment() -> dict[str, str]:
    return {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}


def build() -> subprocess.CompletedProcess[str]:
    run = subprocess.run(ARGV, env=environment(), capture_output=True, text=True, check=False, cwd=REPO)
    # Molecule asks for colours, and a long message is folded.
    run.stdout = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", run.stdout).split())
    return run


def log(host: Any) -> str:
    return str(host.file(f"{WORK}/build.log").content_string)


def again(host: Any, *changed: str) -> None:
    """Make the wheelhouse incomplete, and these components unfinished."""
    host.run_test(f"rm -f {RELEASE}/complete.sha256 {' '.join(f'{WORK}/*-{name}/done.json' for name in changed)}")


def test_wheels_lock_manifest_log_and_provenance_are_there(host: Any) -> None:
    names = host.run(f"ls {RELEASE}").stdout.split()
    assert {"lock.txt", "SHA256SUMS", "provenance.json", "build.log", "complete.sha256", "installer.txt"} <= set(names)
    host.run_test(f"cd {RELEASE} && sha256sum --check --quiet SHA256SUMS")
    lock = host.file(f"{RELEASE}/lock.txt").content_string.splitlines()
    assert [line.split("==")[0] for line in lock] == ["tiny-kernels", "tiny-triton", "vllm"]
    document = json.loads(host.file(f"{RELEASE}/provenance.json").content_string)
    assert (document["method"], document["lock_from"], document["host"]) == ("source", "the build", "build-source")
    assert [c["name"] for c in document["components"]] == ["tiny-triton", "tiny-kernels", "vllm"]
    assert document["components"][2]["sha256"] == (HERE / "vllm.sha256").read_text()
    assert document["tools"]["gcc"].startswith("gcc")


def test_the_controller_has_it_and_it_is_for_the_gpu() -> None:
    folder = HERE / "wheelhouse/1.0.0-tiny"
    argv = ["instinct-fleet", "wheelhouse", str(folder), "--python", "3.11", "--glibc", "2.36", "--require", "gfx942"]
    argv += ["--device-code", "vllm", "--device-code", "tiny-kernels"]
    subprocess.run(argv, check=True)


def test_a_killed_connection_does_not_end_the_build_and_a_second_run_follows_it(host: Any) -> None:
    again(host, "vllm")
    before = log(host)
    host.run_test("touch /run/slow-vllm")
    play = subprocess.Popen(
        ARGV, env=environment(), cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while "[3/3] vllm: building" not in log(host).removeprefix(before):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    os.killpg(play.pid, signal.SIGKILL)
    play.wait()
    main = "systemctl show --value -p MainPID " + UNIT
    pid = host.run(main).stdout
    assert host.run(f"systemctl is-active {UNIT}").stdout.strip() == "active"
    host.run_test("(sleep 20; rm /run/slow-vllm) >/dev/null 2>&1 &")
    assert host.run(main).stdout == pid
    run = build()
    assert run.returncode == 0, run.stdout
    # It followed the unit that ran, and started none.
    assert "TASK [vllm_build : build | Start the build apart from this connection] ********* skipping" in run.stdout
    assert "[3/3] vllm: building" in run.stdout
    assert log(host).removeprefix(before).count("[3/3] vllm: built in") == 1
    assert "[1/3] tiny-triton: kept" in log(host).removeprefix(before)


def test_a_failed_component_is_explained_and_the_next_run_goes_on_after_the_last_finished(host: Any) -> None:
    again(host, "tiny-kernels")
    before = log(host)
    host.run_test("touch /run/broken-tiny-kernels")
    run = build()
    assert run.returncode != 0
    assert "the compiler does not know this GPU target" in run.stdout
    assert "What was finished is kept; run again to go on" in run.stdout
    assert not host.file(f"{RELEASE}/complete.sha256").exists
    host.run_test("rm /run/broken-tiny-kernels")
    run = build()
    assert run.returncode == 0, run.stdout
    assert "[1/3] tiny-triton: built in" not in log(host).removeprefix(before)
    assert log(host).removeprefix(before).count("[2/3] tiny-kernels: built in") == 1
    again_run = build()
    assert "changed=0" in again_run.stdout
