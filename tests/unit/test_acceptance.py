"""One node's verdict, the fleet's table, drift, and what is kept of a node."""

from __future__ import annotations

import base64
import copy
import io
import json
import tarfile
from typing import Any

import pytest
from support import bundle
from support.profile import PROFILES

from instinct_fleet import acceptance


def verdict(host: str, profile: str = "mi300x_8", **changes: Any) -> dict[str, Any]:
    found = acceptance.topology_verdict(bundle.probe(PROFILES[profile]()), host=host, policy="mi300x_8")
    found["fingerprint"] = {**found["fingerprint"], **changes}
    return found


def test_a_healthy_node_is_not_stopped() -> None:
    found = verdict("n1")
    assert found["stops"] == []
    assert found["fingerprint"]["driver"] == "6.14.14"
    assert found["fingerprint"]["ROCm"] == "7.0.2"
    assert None not in found["fingerprint"].values()


def test_the_table_names_the_refused_host_and_its_worst_finding() -> None:
    table = acceptance.acceptance_table([verdict("good"), verdict("bad", "mi300x_one_pair_pcie")])
    assert table.startswith("1 of 2 hosts are not accepted:\n  bad  [error] ")
    assert "GPU2" in table
    assert "GPU5" in table


def test_hosts_that_are_alike_and_well_need_no_table() -> None:
    assert acceptance.acceptance_table([verdict("a"), verdict("b")]) == ""


def test_the_one_that_differs_is_drift() -> None:
    fleet = [verdict("a"), verdict("b"), verdict("c", driver="6.12.12"), verdict("d", firmware=None)]
    assert acceptance.fleet_drift(fleet) == [
        "c: driver is 6.12.12; 3 of 4 hosts have 6.14.14",
        "d: firmware is unknown; 3 of 4 hosts have 022.040",
    ]


def test_two_hosts_have_no_majority() -> None:
    (line,) = acceptance.fleet_drift([verdict("a", kernel="6.8"), verdict("b", kernel="6.9")])
    assert line == "kernel differs and no value has a majority: 6.8 on a; 6.9 on b"


def test_unknown_everywhere_is_no_drift() -> None:
    assert acceptance.fleet_drift([verdict("a", ROCm=None), verdict("b", ROCm=None)]) == []


def test_the_shape_of_a_node_does_not_depend_on_its_addresses() -> None:
    one, other = verdict("a"), verdict("b", "mi300x_one_pair_pcie")
    assert one["fingerprint"]["topology"] != other["fingerprint"]["topology"]


@pytest.mark.parametrize(
    "text",
    [
        '"asic_serial": "0xSECRET42"',
        '"uuid": "SECRET42"',
        "    ASIC_SERIAL: 0xSECRET42",
        "  Uuid:                    GPU-SECRET42",
        "Capabilities: [150 v1] Device Serial Number SECRET42",
        "PASSWORD=SECRET42",
        "api_key: SECRET42",
        'hf_token="SECRET42"',
    ],
)
def test_what_identifies_or_opens_something_is_left_out(text: str) -> None:
    assert "SECRET42" not in json.dumps(acceptance.redact({"x": [text]}))


def test_a_kept_bundle_is_judged_like_the_node() -> None:
    probe = bundle.probe(PROFILES["mi300x_8"]())
    packed = base64.b64decode(acceptance.bundle_archive(probe))
    assert packed == base64.b64decode(acceptance.bundle_archive(copy.deepcopy(probe)))
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        member = tar.extractfile("probe.json")
        assert member is not None
        kept = json.load(member)
    again = acceptance.topology_verdict(kept, host="n1", policy="mi300x_8")
    assert again == acceptance.topology_verdict(probe, host="n1", policy="mi300x_8")
