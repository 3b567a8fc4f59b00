"""What a converged node does: it serves, keeps its key to itself, and comes back when the engine dies."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
import testinfra

URL = "http://127.0.1.21:8000"
KEY = "a-key-for-tests-only"
UNIT = "vllm-tiny.service"
testinfra_hosts = ["podman://serve-default"]


def journal(host: Any) -> str:
    return str(host.run(f"journalctl --no-pager -o cat -n 60 -u {UNIT}").stdout)


def ask(question: str, key: str = KEY) -> str:
    body = {"model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{URL}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(json.load(response)["choices"][0]["message"]["content"]).strip()


def processes(host: Any) -> dict[str, int]:
    """Return vLLM's own process titles -> process id."""
    lines = host.run("ps -eo pid=,args=").stdout.splitlines()
    rows = [line.strip().split(None, 1) for line in lines]
    return {title.split()[0]: int(pid) for pid, title in rows if title.startswith("VLLM::")}


def test_answers_word_for_word() -> None:
    assert ask("What is the capital of France?") == "Paris."
    assert ask("Which version are you?") == "I am version one."


def test_refuses_a_wrong_key() -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        ask("What is the capital of France?", key="another")
    assert error.value.code == 401


def test_unit_is_active_and_enabled(host: Any) -> None:
    service = host.service(UNIT)
    assert service.is_running, journal(host)
    assert service.is_enabled


def test_two_workers_run_bound_to_the_planned_node(host: Any) -> None:
    found = processes(host)
    assert {"VLLM::Worker_TP0", "VLLM::Worker_TP1"} <= set(found), found
    for title, pid in found.items():
        environment = host.run(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout.splitlines()
        assert "HIP_VISIBLE_DEVICES=0,1" in environment, title
        policy = host.run(f"grep -m1 heap /proc/{pid}/numa_maps").stdout
        assert "prefer:0" in policy or "bind:0" in policy, f"{title}: {policy}"


def test_the_key_is_nowhere_but_in_its_file(host: Any) -> None:
    key_file = host.file("/etc/vllm/tiny.key")
    assert key_file.mode == 0o600
    assert key_file.user == "root"
    assert KEY in key_file.content_string
    assert KEY not in host.run("ps -eo args").stdout
    assert KEY not in host.run("journalctl --no-pager -o cat").stdout
    assert KEY not in host.run(f"systemctl cat {UNIT}; systemctl show {UNIT}").stdout
    # The service itself cannot read the file either.
    assert host.run("runuser -u vllm -- cat /etc/vllm/tiny.key").rc != 0


def test_it_runs_unprivileged_and_confined(host: Any) -> None:
    pid = int(host.run(f"systemctl show --value -p MainPID {UNIT}").stdout)
    status = host.run(f"cat /proc/{pid}/status").stdout
    assert f"Uid:\t{host.user('vllm').uid}" in status
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status
    exposure = host.run(f"systemd-analyze security --no-pager {UNIT} | tail -n 1").stdout
    # "Overall exposure level for vllm-tiny.service: 2.4 OK": the figure in the role's README.
    figure = float(exposure.split(":")[1].split()[0])
    assert figure <= 3.0, exposure


def test_a_killed_engine_comes_back_by_itself(host: Any) -> None:
    before = processes(host)
    main = host.run(f"systemctl show --value -p MainPID {UNIT}").stdout
    host.run_test(f"kill -9 {before['VLLM::EngineCore']}")
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        state = host.run(f"systemctl show -p ActiveState -p MainPID --value {UNIT}").stdout.split()
        if "active" in state and main.strip() not in state:
            break
        time.sleep(2)
    else:
        pytest.fail(f"{UNIT} did not come back:\n{journal(host)}")
    assert ask("What is the capital of Japan?") == "Tokyo."
    assert int(host.run(f"systemctl show --value -p NRestarts {UNIT}").stdout) == 1
    after = processes(host)
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())


def test_nothing_of_it_listens_beyond_the_node() -> None:
    # The address of the instance is loopback; nothing may be bound to every address.
    listening = testinfra.get_host("podman://serve-default").run("ss -Hltnp").stdout
    ours = [line for line in listening.splitlines() if "vllm" in line.lower()]
    assert ours
    everywhere = ("0.0.0.0:", "[::]:", "*:")
    assert not [line for line in ours if line.split()[3].startswith(everywhere)]
