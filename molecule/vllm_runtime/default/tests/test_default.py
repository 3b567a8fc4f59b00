"""Releases on a node that has no network, managed by a controller that has none either."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[4]
INVENTORY = Path(os.environ["MOLECULE_INVENTORY_FILE"]).parent
WORK = REPO / ".cache/runtime-scenario"
FIRST, SECOND = "/opt/vllm/releases/0.32.0-first", "/opt/vllm/releases/0.33.0-second"
UNIT = "vllm-tiny.service"
testinfra_hosts = ["podman://runtime-default"]


def argv(**variables: Any) -> list[str]:
    # A network namespace without an interface: no index, no mirror and no host can be reached, by anybody.
    play = ["ansible-playbook", str(REPO / "playbooks/serve.yml"), "-i", str(INVENTORY)]
    return ["unshare", "--net", *play, "-e", json.dumps(variables)]


def environment() -> dict[str, str]:
    return {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}


def serve(**variables: Any) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(argv(**variables), env=environment(), capture_output=True, text=True, check=False, cwd=REPO)
    # A long message is folded where the terminal would end.
    run.stdout = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", run.stdout).split())
    assert "Traceback" not in run.stdout + run.stderr
    return run


def release_of(host: Any) -> str:
    line = host.run(f"systemctl show -p ExecStart {UNIT}").stdout
    return str(line.partition("/opt/vllm/releases/")[2].partition("/")[0])


@contextmanager
def file_on(host: Any, path: str) -> Iterator[None]:
    host.run_test(f"touch {path}")
    try:
        yield
    finally:
        host.run_test(f"rm -f {path}")


def test_neither_side_has_a_network(host: Any) -> None:
    assert host.run("ls /sys/class/net").stdout.split() == ["lo"]
    code = "import socket; print([name for _, name in socket.if_nameindex()])"
    inside = subprocess.run(["unshare", "--net", "python3", "-c", code], capture_output=True, text=True, check=True)
    assert inside.stdout == "['lo']\n"


def test_the_first_build_wrote_lock_manifest_and_provenance() -> None:
    folder = WORK / "wheelhouse/0.32.0-first"
    lock = (folder / "lock.txt").read_text()
    assert "vllm==0.32.0+rocm1 --hash=sha256:" in lock
    assert "uv==" not in lock
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    document = json.loads((folder / "provenance.json").read_text())
    assert (document["method"], document["lock_from"], document["release"]) == ("wheel", "first use", "0.32.0-first")


def test_the_release_is_root_s_and_says_what_it_proved(host: Any) -> None:
    record = json.loads(host.file(f"{FIRST}/release.json").content_string)
    assert record["proof"]["hip"] == "10.0"
    assert record["proof"]["vllm"] == "0.32.0+rocm1"
    assert host.file(f"{FIRST}/complete.sha256").user == "root"
    assert host.run(f"find {FIRST} ! -user root -o -type f -perm /022").stdout == ""
    assert host.run(f"runuser -u vllm -- touch {FIRST}/x").rc != 0
    assert release_of(host) == "0.32.0-first"


@pytest.mark.parametrize(
    ("variables", "texts"),
    [
        (
            {"vllm_runtime_set": "cuda-torch"},
            ["holds CUDA code and none for gfx942: it is a CUDA wheel", "nothing was moved"],
        ),
        ({"vllm_runtime_set": "nightly"}, ["runtime set is 'nightly', expected one of"]),
        (
            {"vllm_runtime_set": "new-libc"},
            ["cannot run release 0.33.0-new-libc", "and the wheels of set new-libc need glibc 2.99 or newer"],
        ),
        (
            {"vllm_serve_instances": [{"name": "huge", "model": "/m/huge", "tensor_parallel_size": 4}]},
            ["need 811 GB", "of weights", "an FP8 checkpoint"],
        ),
        (
            {
                "vllm_serve_instances": [
                    {"name": "tiny", "model": "/m/tiny", "extra_args": {"enable-auto-tool-choice": True}}
                ]
            },
            [
                "instance tiny: vLLM 0.32.0 refuses its configuration, in its own words: TypeError: Error: "
                "--enable-auto-tool-choice requires --tool-call-parser",
                "Nothing was changed",
            ],
        ),
    ],
)
def test_what_is_refused_before_anything_changes(host: Any, variables: dict[str, Any], texts: list[str]) -> None:
    models = [{"name": n, "source": str(WORK / "models" / n)} for n in ("huge",)]
    more = {"model_store_models": models, "model_store_root": "/m"} if "/m/huge" in json.dumps(variables) else {}
    before = host.run("find /opt/vllm /etc/vllm /etc/systemd/system | sort | sha256sum").stdout
    run = serve(**variables, **more, runtime_sets={**SETS, "new-libc": {**SETS["second"], "glibc": "2.99"}})
    assert run.returncode != 0
    for text in texts:
        assert text in run.stdout, run.stdout
    assert "changed=0" in run.stdout
    assert host.run("find /opt/vllm /etc/vllm /etc/systemd/system | sort | sha256sum").stdout == before
    assert host.service(UNIT).is_running


def test_a_node_without_the_python_of_the_wheels_is_refused(host: Any) -> None:
    other = {**SETS["second"], "python": "3.99", "abi": "cp399"}
    shutil.copytree(WORK / "wheelhouse/0.33.0-second", WORK / "wheelhouse/0.33.0-other", dirs_exist_ok=True)
    run = serve(vllm_runtime_set="other", runtime_sets={**SETS, "other": other})
    assert run.returncode != 0
    assert "the wheels of set other are for Python 3.99 only; this node has no python3.99" in run.stdout
    assert not host.file("/opt/vllm/wheelhouse/0.33.0-other").exists


def forged(good: Path) -> bytes:
    """Return a whole and valid wheel of the same size that says something else."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(buffer, "w") as target:
        for info in source.infolist():
            target.writestr(info, source.read(info).replace(b"'10.0'", b"'66.6'"))
    return buffer.getvalue()


def test_a_tampered_wheel_is_refused_before_anything_moves(host: Any) -> None:
    (path,) = (WORK / "wheelhouse/0.33.0-second").glob("torch-*.whl")
    good, bad = path.read_bytes(), forged(path)
    assert len(good) == len(bad)
    path.write_bytes(bad)
    try:
        run = serve(vllm_runtime_set="second")
    finally:
        path.write_bytes(good)
    assert run.returncode != 0
    assert "the file was changed or replaced; do not install it before you know why" in run.stdout
    assert not host.file("/opt/vllm/wheelhouse/0.33.0-second").exists


def interrupt_at_help(host: Any, name: str) -> None:
    """Start an installation and kill it, with all its processes, when all is installed but the proof."""
    play = subprocess.Popen(
        argv(vllm_runtime_set=name),
        env=environment(),
        cwd=REPO,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while host.run("pgrep -f '[v]llm serve --help'").rc != 0:
        assert time.monotonic() < deadline, "the installation did not come to its last step"
        assert play.poll() is None, "the installation ended by itself"
        time.sleep(0.5)
    os.killpg(play.pid, signal.SIGKILL)
    play.wait()
    host.run("pkill -f '[v]llm serve --help'")


def test_an_interrupted_installation_goes_on_and_trusts_nothing_on_the_node(host: Any) -> None:
    with file_on(host, "/run/slow-help"):
        interrupt_at_help(host, "second")
    assert host.file(f"{SECOND}/pyvenv.cfg").exists
    assert not host.file(f"{SECOND}/complete.sha256").exists
    assert release_of(host) == "0.32.0-first"
    # A wheel is changed meanwhile, by somebody who can also keep its size.
    (torch,) = (WORK / "wheelhouse/0.33.0-second").glob("torch-*.whl")
    place = f"/opt/vllm/wheelhouse/0.33.0-second/{torch.name}"
    argv = ["podman", "exec", "-i", "runtime-default", "tee", place]
    subprocess.run(argv, input=forged(torch), stdout=subprocess.DEVNULL, check=True)
    others = "stat -c '%n %i' /opt/vllm/wheelhouse/0.33.0-second/[uv]*.whl"
    before = host.run(others).stdout
    run = serve(vllm_runtime_set="second", vllm_serve_restart_allowed=True)
    assert run.returncode == 0, run.stdout
    # What had arrived unharmed was not moved again; what was changed was replaced and not installed.
    assert host.run(others).stdout == before
    assert host.file(place).sha256sum == hashlib.sha256(torch.read_bytes()).hexdigest()
    assert json.loads(host.file(f"{SECOND}/release.json").content_string)["proof"]["hip"] == "10.0"
    assert release_of(host) == "0.33.0-second"
    assert host.service(UNIT).is_running


def test_a_rollback_is_to_serve_the_release_before(host: Any) -> None:
    inode = host.run(f"stat -c '%i %Y' {FIRST}/complete.sha256 {FIRST}/bin/vllm").stdout
    run = serve(vllm_runtime_set="first", vllm_serve_restart_allowed=True)
    assert run.returncode == 0, run.stdout
    assert release_of(host) == "0.32.0-first"
    assert host.run(f"stat -c '%i %Y' {FIRST}/complete.sha256 {FIRST}/bin/vllm").stdout == inode
    assert host.file(f"{SECOND}/complete.sha256").exists


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ("size=60m", ["MiB free, and 0.33.0-full needs", "nothing was moved and what serves is untouched"]),
        ("size=900m,nr_inodes=40", ["the disk is full, of bytes or of inodes", f"{UNIT} goes on as before"]),
    ],
)
def test_a_full_disk_leaves_what_serves(host: Any, options: str, texts: list[str]) -> None:
    pid = host.run(f"systemctl show --value -p MainPID {UNIT}").stdout
    host.run_test(f"mkdir -p /srv/small && mount -t tmpfs -o {options} none /srv/small")
    try:
        run = serve(vllm_runtime_set="full", vllm_runtime_root="/srv/small")
        assert run.returncode != 0
        for text in texts:
            assert text in run.stdout, run.stdout
        assert not host.file("/srv/small/releases/0.33.0-full/complete.sha256").exists
    finally:
        host.run_test("umount -l /srv/small")
    assert host.run(f"systemctl show --value -p MainPID {UNIT}").stdout == pid


def test_old_releases_go_with_consent_and_never_what_serves(host: Any) -> None:
    run = serve(vllm_runtime_keep_releases=0)
    assert run.returncode == 0, run.stdout
    assert "vllm_runtime_remove_allowed=true would remove 0.33.0-second (installed 20" in run.stdout
    assert host.file(SECOND).exists
    run = serve(vllm_runtime_keep_releases=0, vllm_runtime_remove_allowed=True)
    assert run.returncode == 0, run.stdout
    assert not host.file(SECOND).exists
    assert not host.file("/opt/vllm/wheelhouse/0.33.0-second").exists
    assert host.file(f"{FIRST}/complete.sha256").exists
    assert host.service(UNIT).is_running


def sets() -> dict[str, Any]:
    inventory = subprocess.run(
        ["ansible-inventory", "-i", str(INVENTORY), "--host", "runtime-default"],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(inventory.stdout)["runtime_sets"]
    return found


SETS = sets()
