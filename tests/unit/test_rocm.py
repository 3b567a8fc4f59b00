"""Driver and ROCm: combinations, suites, plans, and what apt and dpkg say."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from instinct_fleet import rocm
from instinct_fleet.openpgp import fingerprints, key_problem

#: Two keys that nothing but this test knows: an ed25519 key as gpg 2.2 exports it, and another one.
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawy0lBYJKwYBBAHaRw8BAQdAjr9ahfVHx8+0HKhOOO77Asroq4ffIgLujFTK
2XZDCbK0DXVuaXQgdGVzdCBrZXmIkAQTFggAOBYhBM5TCRCHzXeiYgJ2cm1h/tDZ
Pj97BQJrDLSUAhsDBQsJCAcCBhUKCQgLAgQWAgMBAh4BAheAAAoJEG1h/tDZPj97
pa8A/j/jLz6JVWsKYsEs4DeziGout+YyRMgaL1C1eDQaiSbtAQCqVnMpvdbjogP5
wXbw43kf+YTNqxM1mTCpleCpFLQqCA==
=XY3K
-----END PGP PUBLIC KEY BLOCK-----
"""
KEY_FINGERPRINT = "CE53091087CD77A2620276726D61FED0D93E3F7B"
OTHER = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawy0lRYJKwYBBAHaRw8BAQdAUWAUQO9uP17tt7QYLinYPtdSE4NIRYaZcDCO
A06mv960FWFub3RoZXIgdW5pdCB0ZXN0IGtleYiQBBMWCAA4FiEEoku+Gu+dhmVP
Dpoo+6LMaeHNx2wFAmsMtJUCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQ
+6LMaeHNx2yUCgD/VuYqITfMOAxd8gw8g5c8BrM1dXVMcfMIUOmHS7zZeYwA/0tR
XPzTF5tjujYtfwuOuoqf8QMS3BXhopcHKPaEVv8C
=MmGv
-----END PGP PUBLIC KEY BLOCK-----
"""
OTHER_FINGERPRINT = "A24BBE1AEF9D86654F0E9A28FBA2CC69E1CDC76C"

OS_RELEASE = {
    "bookworm": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nID=debian\n',
    "trixie": 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nVERSION_ID="13"\nVERSION_CODENAME=trixie\nID=debian\n',
    "jammy": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian\n',
    "noble": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n',
    "el9": 'NAME="Red Hat Enterprise Linux"\nVERSION_ID="9.6"\nID="rhel"\nID_LIKE="fedora"\n',
    "el10": 'NAME="Red Hat Enterprise Linux"\nVERSION_ID="10.0"\nID="rhel"\n',
}
KERNEL = {
    "bookworm": "6.1.0-40-amd64",
    "trixie": "6.12.48+deb13-amd64",
    "jammy": "5.15.0-157-generic",
    "noble": "6.8.0-86-generic",
    "el9": "5.14.0-570.12.1.el9_6.x86_64",
    "el10": "6.12.0-55.9.1.el10_0.x86_64",
}
URLS = {
    "rocm": "https://repo.radeon.com/rocm",
    "driver": "https://repo.radeon.com/amdgpu",
    "graphics": "https://repo.radeon.com/graphics/",
}
DRIVER = "1:6.14.14.30100200-2212064.22.04"
TOOLS = "26.0.2.70002-56~22.04"


def said(stdout: str = "") -> dict[str, Any]:
    return {"path": "/usr/bin/tool", "rc": 0, "stdout": stdout, "stderr": "", "error": None}


def node(system: str = "bookworm", *, converged: bool = False, **changes: Any) -> dict[str, Any]:
    """Return what node_probe reads of a bare or a converged node."""
    kernel = KERNEL[system]
    missing = {"path": None, "rc": None, "stdout": "", "stderr": "", "error": "not found"}
    commands: dict[str, Any] = {" ".join(argv): said() for argv in rocm.PROBE_COMMANDS}
    commands["dkms status"] = missing
    commands["ls -1 /boot"] = said(f"config-{kernel}\ninitrd.img-{kernel}\nvmlinuz-{kernel}\n")
    commands["getent group render video"] = said("render:x:992:vllm\nvideo:x:44:vllm\n")
    packages: dict[str, str | None] = {"amdgpu-dkms": None, "amdgpu-dkms-firmware": None, "amd-smi-lib": None}
    if converged:
        commands["dkms status"] = said(f"amdgpu/6.14.14-2212064.22.04, {kernel}, x86_64: installed\n")
        commands[" ".join(rocm.PROBE_COMMANDS[3])] = said(f"/lib/modules/{kernel}/build\n")
        commands["apt-mark showhold"] = said("amd-smi-lib\namdgpu-dkms\namdgpu-dkms-firmware\n")
        packages = {"amdgpu-dkms": DRIVER, "amdgpu-dkms-firmware": DRIVER, "amd-smi-lib": TOOLS}
    commands |= changes.pop("commands", {})
    packages |= changes.pop("packages", {})
    return {
        "kernel": kernel,
        "paths": {"/etc/os-release": OS_RELEASE[system], rocm.KEYRING: KEY if converged else None},
        "commands": commands,
        "packages": packages,
        "units": {},
        **changes,
    }


def plan(probe: dict[str, Any], **options: Any) -> dict[str, Any]:
    wanted: dict[str, Any] = {"stack": "pip", "release": "7.0.2", "urls": URLS, "key_fingerprint": KEY_FINGERPRINT}
    return rocm.rocm_plan(probe, **(wanted | {"packages": ["amd-smi-lib"]} | options))


def content(made: dict[str, Any], dest: str) -> str:
    return next(str(f["content"]) for f in made["files"] if f["dest"] == dest)


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_entry_of_the_table_has_a_source_and_fits_the_others() -> None:
    table = rocm.compatibility()
    for release in table.releases:
        assert rocm.combination_problems(release.release) == []
        assert table.driver(release.driver) is not None
    # AMD's key is recognised by the id that apt names when it is missing.
    assert table.key_fingerprint.endswith("9386B48A1A693C5C")


def test_a_table_that_contradicts_itself_is_refused() -> None:
    document = rocm.compatibility().model_dump()
    document["releases"][0]["source"] = "hearsay"
    with pytest.raises(ValueError, match="source hearsay is not among sources"):
        rocm.Compatibility.model_validate(document)
    document = rocm.compatibility().model_dump()
    document["releases"][0]["driver"] = "31.99"
    with pytest.raises(ValueError, match=r"driver 31\.99 is not among drivers"):
        rocm.Compatibility.model_validate(document)
    document = rocm.compatibility().model_dump()
    document["releases"][0]["systems"] = ["plan 9"]
    with pytest.raises(ValueError, match="plan 9"):
        rocm.Compatibility.model_validate(document)


@pytest.mark.parametrize(
    ("release", "options", "expected"),
    [
        ("7.2.3", {}, []),
        ("7.2.3", {"driver_release": "30.10.2"}, []),
        ("9.9", {}, ["rocm_release is 9.9, expected one of 7.0.2"]),
        ("7.2.3", {"driver_release": "29.1"}, ["rocm_driver_release is 29.1, expected one of 30.30"]),
        (
            "7.0.2",
            {"driver_release": "30.20"},
            ["driver 30.20 is known to serve ROCm 7.1, 7.2 (matrix), and ROCm 7.0.2"],
        ),
        ("7.2.3", {"vllm_variant": "rocm700", "driver_release": "30.20"}, ["vLLM wheels rocm700 carry ROCm 7.0.2"]),
        ("7.2.3", {"vllm_variant": "rocm99"}, ["rocm_vllm_variant is rocm99, expected one of rocm700"]),
        ("latest", {}, ["rocm_release: release is 'latest', expected numbers"]),
    ],
)
def test_combinations(release: str, options: dict[str, str], expected: list[str]) -> None:
    problems = rocm.combination_problems(release, **options)
    assert len(problems) == len(expected)
    for problem, start in zip(problems, expected, strict=True):
        assert problem.startswith(start)


def test_an_unknown_combination_is_let_through_only_when_told() -> None:
    assert rocm.combination_problems("7.0.2", driver_release="30.20", allow_unknown=True) == []
    assert rocm.combination_problems("latest", allow_unknown=True)
    assert "set rocm_driver_release too" in rocm.combination_problems("9.9", allow_unknown=True)[0]
    text = rocm.combination_text(["a is b"], host="n1")
    assert text.startswith("n1: a is b.")
    assert "rocm_allow_unknown_combination=true" in text


@pytest.mark.parametrize(
    ("release", "token"),
    [("7.0.2", "70002"), ("7.1", "70100"), ("6.3.4", "60304"), ("30.10.2", "30100200"), ("30.20", "30200000")],
)
def test_tokens_are_written_as_amd_does(release: str, token: str) -> None:
    assert rocm.release_token(release) == token


@pytest.mark.parametrize(
    ("version", "token"),
    [
        ("7.0.2.70002-56~24.04", "70002"),
        ("1:6.14.14.30100100-2212064.24.04", "30100100"),
        ("1:6.10.5.60304-2125197.22.04", "60304"),
        ("6.14.14.30100200-2212064.el9", "30100200"),
        ("5.7.1-3", None),
        ("99.0-1", None),
        (None, None),
    ],
)
def test_releases_are_read_from_versions(version: str | None, token: str | None) -> None:
    assert rocm.version_token(version) == token


# --- systems ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "suite"), [("bookworm", "jammy"), ("trixie", "noble"), ("jammy", "jammy"), ("noble", "noble")]
)
def test_apt_systems_take_their_suite_and_headers(system: str, suite: str) -> None:
    made = plan(node(system))
    assert made["refusals"] == []
    assert made["suite"] == suite
    sources = content(made, "/etc/apt/sources.list.d/rocm.sources")
    assert "URIs: https://repo.radeon.com/rocm/apt/7.0.2\n" in sources
    assert f"Suites: {suite}\n" in sources
    assert f"Signed-By: {rocm.KEYRING}\n" in sources
    driver = content(made, "/etc/apt/sources.list.d/amdgpu.sources")
    assert "URIs: https://repo.radeon.com/amdgpu/30.10.2/ubuntu\n" in driver
    headers = [f"linux-headers-{KERNEL[system]}"]
    if system in ("jammy", "noble"):
        headers.append(f"linux-modules-extra-{KERNEL[system]}")
    assert made["headers"] == headers


def test_dnf_systems_take_their_repositories() -> None:
    nine, ten = plan(node("el9")), plan(node("el10"))
    assert "baseurl=https://repo.radeon.com/amdgpu/30.10.2/el/9.6/main/x86_64/\n" in content(
        nine, "/etc/yum.repos.d/amdgpu.repo"
    )
    assert "baseurl=https://repo.radeon.com/amdgpu/30.10.2/el/10/main/x86_64/\n" in content(
        ten, "/etc/yum.repos.d/amdgpu.repo"
    )
    text = content(nine, "/etc/yum.repos.d/rocm.repo")
    assert "baseurl=https://repo.radeon.com/rocm/el9/7.0.2/main\n" in text
    assert "priority=50\ngpgcheck=1\ngpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-rocm\n" in text
    assert rocm.rocm_dnf_specs(nine)[0] == "amd-smi-lib-*.70002-*"
    assert nine["headers"][0] == f"kernel-devel-{KERNEL['el9']}"


def test_another_system_or_kernel_is_refused() -> None:
    other = plan(node(paths={"/etc/os-release": 'PRETTY_NAME="Plan 9"\nID=plan9\nVERSION_ID=4\n'}))
    assert other["refusals"] == [
        "the node runs Plan 9, expected one of ubuntu 22.04, ubuntu 24.04, debian 12, debian 13, rhel 9, rhel 10"
    ]
    assert other["files"] == []
    assert "could not be read" in plan({})["refusals"][0]
    kernel = plan(node(kernel="6.18.1-amd64"))
    assert kernel["refusals"][0].startswith("kernel 6.18.1-amd64 is not of a series that is known to work on debian 12")
    assert plan(node(kernel="6.18.1-amd64"), allow_unknown=True)["refusals"] == []


def test_the_driver_is_wanted_for_the_running_kernel_and_for_the_next_one() -> None:
    boot = said("vmlinuz-6.1.0-9-amd64\nvmlinuz-6.1.0-41-amd64\nvmlinuz-0-rescue-abc\ngrub\n")
    probe = node(commands={"ls -1 /boot": boot})
    assert rocm.target_kernels(probe) == ["6.1.0-40-amd64", "6.1.0-41-amd64"]
    assert rocm.target_kernels(probe, ["6.1.0-1-amd64"]) == ["6.1.0-1-amd64"]
    assert rocm.newest_kernel(["vmlinuz-0-rescue-abc"]) is None
    assert "the kernel could not be read" in plan(node(kernel=None, commands={"ls -1 /boot": said()}))["refusals"][0]


# --- the node --------------------------------------------------------------------------------------------------------


def test_a_converged_node_has_nothing_to_do() -> None:
    made = plan(node(converged=True))
    assert (made["refusals"], made["unsettled"], made["headers"]) == ([], [], [])
    assert made["key_ok"]


@pytest.mark.parametrize(
    ("changes", "kind", "what"),
    [
        ({"packages": {"amdgpu-dkms": None}}, "package", "amdgpu-dkms is not installed, expected a version with .3010"),
        ({"packages": {"amd-smi-lib": "99.0-1"}}, "package", "amd-smi-lib is 99.0-1, expected a version with .70002-"),
        ({"commands": {"apt-mark showhold": said("amdgpu-dkms\namd-smi-lib\n")}}, "hold",
         "amdgpu-dkms-firmware is not held"),
        ({"commands": {" ".join(rocm.PROBE_COMMANDS[3]): said()}}, "headers", "kernel 6.1.0-40-amd64 has no headers"),
        ({"commands": {"dkms status": said("amdgpu/6.14.14, 6.1.0-39-amd64, x86_64: installed\n")}}, "dkms",
         "the driver for kernel 6.1.0-40-amd64 is added, and not built for this kernel, expected installed"),
        ({"commands": {"dkms status": said("amdgpu/6.14.14, 6.1.0-40-amd64, x86_64: built\n")}}, "dkms",
         "the driver for kernel 6.1.0-40-amd64 is built, expected installed"),
        ({"commands": {"dkms status": said("amdgpu, 6.14.14, 6.1.0-40-amd64, x86_64: installed (WARNING! Diff)\n")}},
         "dkms",
         "is installed (WARNING! Diff), expected installed"),
    ],
)  # fmt: skip
def test_what_is_not_as_wanted_is_named(changes: dict[str, Any], kind: str, what: str) -> None:
    made = plan(node(converged=True, **changes))
    assert [u["kind"] for u in made["unsettled"]] == [kind]
    assert what in made["unsettled"][0]["what"]
    assert what in rocm.rocm_unsettled_text(made, host="n1")


def test_a_new_kernel_asks_for_its_headers_and_a_build() -> None:
    probe = node(converged=True, kernel="6.1.0-41-amd64")
    made = plan(probe)
    assert made["headers"] == ["linux-headers-6.1.0-41-amd64"]
    assert made["unbuilt"] == ["6.1.0-41-amd64"]


FOREIGN = [
    (
        {"commands": {"dkms status": said("amdgpu/6.16.6-1, 6.1.0-40-amd64, x86_64: installed\n")}},
        "DKMS has amdgpu 6.16.6-1, and no package owns it",
    ),
    (
        {"packages": {"amdgpu-dkms": "6.99-site1"}},
        "package amdgpu-dkms 6.99-site1, a version of no driver in instinct_fleet/data/rocm_compatibility.yml",
    ),
    (
        {"commands": {"modinfo -F filename amdgpu": said("/lib/modules/6.1.0-40-amd64/extra/amdgpu.ko\n")}},
        "modprobe would load /lib/modules/6.1.0-40-amd64/extra/amdgpu.ko, which is neither the kernel's own",
    ),
]


@pytest.mark.parametrize(("changes", "detail"), FOREIGN)
def test_a_driver_of_somebody_else_is_left_alone(changes: dict[str, Any], detail: str) -> None:
    made = plan(node(**changes))
    text = rocm.rocm_refusal_text(made, host="n1")
    assert text.startswith("n1: nothing was changed: a driver that this role does not know is there: " + detail)
    assert "Set rocm_replace_driver=true to replace it by driver 30.10.2" in text
    assert plan(node(**changes), replace_driver=True)["refusals"] == []


def test_only_modules_without_a_package_are_taken_out_of_dkms() -> None:
    assert plan(node(**FOREIGN[0][0]), replace_driver=True)["foreign_dkms"] == ["6.16.6-1"]
    assert plan(node(converged=True), replace_driver=True)["foreign_dkms"] == []


@pytest.mark.parametrize(
    ("filename", "kind"),
    [
        ("/lib/modules/6.1.0-40-amd64/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko", "none"),
        ("/usr/lib/modules/6.1.0-40-amd64/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko.xz", "none"),
        ("(builtin)", "none"),
        ("/lib/modules/6.1.0-40-amd64/updates/amdgpu.ko", "unknown"),
    ],
)
def test_the_kernels_own_driver_is_no_stranger(filename: str, kind: str) -> None:
    found = rocm.driver_found(node(commands={"modinfo -F filename amdgpu": said(filename + "\n")}))
    assert found["kind"] == kind


AUDIT = """\
The following packages are only half configured, probably due to problems
configuring them the first time.  The configuration should be retried using
dpkg --configure <package> or the configure menu option in dselect:
 amdgpu-dkms          amdgpu driver in DKMS format.

The following packages have been unpacked but not yet configured.
They must be configured using dpkg --configure or the configure
menu option in dselect for them to work:
 rocm-core            rocm-core

The following packages are missing the md5sums control file in the
database, they need to be reinstalled:
 old-thing            nothing
"""
BROKEN = """\
The following packages are in a mess due to serious problems during
installation.  They must be reinstalled for them (and any packages
that depend on them) to function properly:
 amdgpu-dkms          amdgpu driver in DKMS format.
"""


def test_what_dpkg_left_half_way_is_finished_or_reported() -> None:
    assert rocm.audit(AUDIT) == {"unconfigured": ["amdgpu-dkms", "rocm-core"], "broken": []}
    assert rocm.audit("") == rocm.audit(None) == {"unconfigured": [], "broken": []}
    made = plan(node(commands={"dpkg --audit": said(AUDIT), "dkms status": said("amdgpu/6.14.14: added\n")}))
    # An interrupted installation of ours is no stranger's driver.
    assert made["refusals"] == []
    assert made["half"] == ["amdgpu-dkms", "rocm-core"]
    broken = plan(node(commands={"dpkg --audit": said(BROKEN)}))["refusals"]
    assert broken == [
        "dpkg left amdgpu-dkms broken, which configuring again does not mend; "
        "run `apt-get install --reinstall amdgpu-dkms` on the node"
    ]


def test_paths_rights_and_pin() -> None:
    made = plan(
        node(paths={"/etc/os-release": OS_RELEASE["bookworm"], "/etc/environment": 'LANG=C\nPATH="/bin:/usr/bin"\n'})
    )
    assert content(made, "/etc/environment") == 'LANG=C\nPATH="/bin:/usr/bin:/opt/rocm/bin"\n'
    assert content(made, "/etc/apt/preferences.d/rocm-pin-600").endswith(
        "Package: *\nPin: release o=repo.radeon.com\nPin-Priority: 600\n"
    )
    assert 'KERNEL=="kfd", GROUP="render", MODE="0660"' in content(made, "/etc/udev/rules.d/70-amdgpu.rules")
    library = next(f for f in made["files"] if f["dest"] == "/etc/ld.so.conf.d/rocm.conf")
    # The wheels bring ROCm; a second one in the loader's path could be taken instead.
    assert library["state"] == "absent"
    assert "/opt/rocm/lib\n" in content(plan(node(), stack="system"), "/etc/ld.so.conf.d/rocm.conf")
    assert "graphics/7.0.2/ubuntu" in content(plan(node(), stack="system"), "/etc/apt/sources.list.d/rocm.sources")


@pytest.mark.parametrize(
    "text", ["", "LANG=C\n", "PATH=/bin\n", 'PATH="/bin:/opt/rocm/bin"\n', "export PATH='/bin'\n", "# PATH=/x\n"]
)
def test_the_environment_is_extended_once(text: str) -> None:
    once = rocm.merged_environment(text, "/opt/rocm/bin")
    assert rocm.merged_environment(once, "/opt/rocm/bin") == once
    assert once.count("/opt/rocm/bin") == 1
    assert {line for line in text.splitlines() if "PATH" not in line} <= set(once.splitlines())


def test_users_and_groups() -> None:
    made = plan(node(), users=["vllm", "ann"])
    assert made["members"] == [{"user": "ann", "groups": ["render", "video"]}]
    bare = plan(node(commands={"getent group render video": said("video:x:44:\n")}))
    assert bare["groups"] == ["render"]


def test_a_password_of_a_mirror_is_refused_without_showing_it() -> None:
    urls = {"rocm_mirror_url": "https://u:hunter2@m.example/rocm", "rocm_key_url": "https://m.example/a@b.key"}
    (problem,) = rocm.mirror_problems(urls)
    assert problem.startswith("rocm_mirror_url holds a user or a password")
    assert "/etc/apt/auth.conf.d" in problem
    assert "hunter2" not in problem


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ValueError, match="stack is 'all', expected one of none, pip, system"):
        plan(node(), stack="all")
    assert plan({}, stack="none") == rocm.EMPTY_PLAN
    with pytest.raises(ValueError, match=r"no driver is known for ROCm 9\.9; set rocm_driver_release"):
        plan(node(), release="9.9")


# --- what to install -------------------------------------------------------------------------------------------------

ROCM = "https://repo.radeon.com/rocm/apt/7.0.2 jammy/main amd64 Packages"
AMDGPU = "https://repo.radeon.com/amdgpu/30.10.2/ubuntu jammy/main amd64 Packages"
OFFERS = f"""\
amdgpu-dkms | {DRIVER} | {AMDGPU}
amdgpu-dkms-firmware | {DRIVER} | {AMDGPU}
amd-smi-lib |     99.0-1 | http://deb.debian.org/debian bookworm/main amd64 Packages
amd-smi-lib | {TOOLS} | {ROCM}
rocm-core | 7.0.2.70002-56~22.04 | {ROCM}
linux-headers-6.1.0-40-amd64 | 6.1.153-1 | http://deb.debian.org/debian bookworm/main amd64 Packages
"""


def test_exact_versions_of_amd_are_asked_for() -> None:
    made = rocm.rocm_install(OFFERS, plan=plan(node()))
    assert made["problems"] == []
    assert made["specs"] == [
        f"amdgpu-dkms={DRIVER}",
        f"amdgpu-dkms-firmware={DRIVER}",
        f"amd-smi-lib={TOOLS}",
        "linux-headers-6.1.0-40-amd64",
    ]


def test_packages_of_another_release_move_along_or_go() -> None:
    installed = "rocm-core 7.1.0.70100-20~22.04\nrocm-new 1.0.70100-20~22.04\nbash 5.2.15-2+b8\n"
    specs = rocm.rocm_install(OFFERS, plan=plan(node()), installed=installed)["specs"]
    assert specs[3:5] == ["rocm-core=7.0.2.70002-56~22.04", "rocm-new-"]
    assert "bash" not in " ".join(specs)
    # What is of the release already stays, although no repository offers it by itself.
    assert "rccl" not in " ".join(
        rocm.rocm_install(OFFERS, plan=plan(node()), installed="rccl 2.27.7.70002-56~22.04\n")["specs"]
    )


def test_a_mirror_that_serves_another_release_is_named() -> None:
    wrong = OFFERS.replace("30100200", "30200000")
    problems = rocm.rocm_install(wrong, plan=plan(node()))["problems"]
    assert problems[0] == (
        "https://repo.radeon.com/amdgpu/30.10.2/ubuntu (jammy) has amdgpu-dkms 1:6.14.14.30200000-2212064.22.04, "
        "expected a version with .30100200-"
    )
    none = rocm.rocm_install("", plan=plan(node()))["problems"]
    assert (
        none[2] == "https://repo.radeon.com/rocm/apt/7.0.2 (jammy) has no amd-smi-lib, expected a version with .70002-"
    )
    assert none[3].startswith("no repository of the node has linux-headers-6.1.0-40-amd64; its kernel may be too old")


@pytest.mark.parametrize(
    ("said_by_apt", "meaning"),
    [
        ("W: GPG error: http://m jammy InRelease: The following signatures couldn't be verified because the public "
         "key is not available: NO_PUBKEY FBEA179331C8EC66", "signed by another key"),
        ("W: x: The following signatures were invalid: EXPKEYSIG 9386B48A1A693C5C Someone", "signed by another key"),
        ("E: http://m InRelease: The following signatures were invalid: BADSIG DC37E9B107F110A5 mirror",
         "does not fit its contents"),
        ("E: The repository 'http://m/rocm/apt/7.2.3 jammy Release' does not have a Release file.",
         "no such release or suite"),
        ("E: Failed to fetch http://127.0.0.1:1/x  Could not connect to 127.0.0.1:1 (127.0.0.1).", "cannot be reached"),
        ("W: Failed to fetch http://m.invalid/x  Temporary failure resolving 'm.invalid'", "cannot be reached"),
        ("E: Unable to correct problems, you have held broken packages.", "apt failed: E: Unable to correct"),
    ],
)  # fmt: skip
def test_what_apt_says_is_explained(said_by_apt: str, meaning: str) -> None:
    result = {"msg": "non-zero return code", "stderr": said_by_apt, "stdout": "Get:1 http://m\n"}
    text = rocm.apt_failure_text(result, host="n1", fingerprint="ABCD")
    assert text.startswith("n1: ")
    assert meaning in text
    assert said_by_apt in text
    looped = {
        "msg": "One or more items failed",
        "results": [{"failed": False}, {"failed": True, "stderr": said_by_apt}],
    }
    assert meaning in rocm.apt_failure_text(looped, host="n1", fingerprint="ABCD")


def test_removal_takes_what_is_amds() -> None:
    # One that ends its requests still serves them.
    states = {"vllm-a.service": {"ActiveState": "active"}, "vllm-c.service": {"ActiveState": "deactivating"}}
    probe = node(converged=True, units={**states, "vllm-b.service": None, "vllm-d.service": {"ActiveState": "failed"}})
    made = rocm.rocm_removal(probe, installed=f"amdgpu-dkms {DRIVER}\nrocm-core 7.0.2.70002-56~22.04\nbash 5.2\n")
    assert made["packages"] == ["amdgpu-dkms", "rocm-core"]
    assert made["held"] == ["amdgpu-dkms"]
    assert made["serving"] == ["vllm-a.service", "vllm-c.service"]
    assert {"dest": "/etc/apt/sources.list.d/rocm.sources", "state": "absent", "mode": "0644"} in made["files"]
    busy = rocm.rocm_removal_text({**made, "serving": ["vllm-a.service"]}, host="n1")
    assert busy == "n1: amdgpu-dkms, rocm-core would be removed while vllm-a.service runs; stop it first"
    asked = rocm.rocm_removal_text({**made, "serving": []}, host="n1")
    assert asked == "n1: amdgpu-dkms, rocm-core would be removed; set rocm_remove_allowed=true if that is wanted"


# --- keys ------------------------------------------------------------------------------------------------------------


def test_fingerprints_are_what_gpg_says() -> None:
    assert fingerprints(KEY) == [KEY_FINGERPRINT]
    assert fingerprints(KEY + OTHER) == [KEY_FINGERPRINT, OTHER_FINGERPRINT]


def test_only_the_pinned_key_alone_is_accepted() -> None:
    assert key_problem(KEY, KEY_FINGERPRINT) is None
    spaced = " ".join(KEY_FINGERPRINT[i : i + 4] for i in range(0, 40, 4)).lower()
    assert key_problem(KEY, spaced) is None
    assert key_problem(OTHER, KEY_FINGERPRINT) == f"key {OTHER_FINGERPRINT}, expected {KEY_FINGERPRINT} and no other"
    assert "and no other" in str(key_problem(KEY + OTHER, KEY_FINGERPRINT))
    assert key_problem(None, KEY_FINGERPRINT) == f"no key, expected {KEY_FINGERPRINT}"
    assert "no PGP public key block; it begins with '<html>'" in str(key_problem("<html>", KEY_FINGERPRINT))
    text = rocm.key_refusal_text(OTHER, KEY_FINGERPRINT, host="n1", url="http://m/key")
    assert text.startswith(f"n1: http://m/key holds key {OTHER_FINGERPRINT}, expected {KEY_FINGERPRINT}")


def test_a_key_that_is_cut_off_behind_its_first_packet_is_refused() -> None:
    lines = KEY.splitlines()
    body = base64.b64decode("".join(line for line in lines[1:-1] if line and not line.startswith("=")))
    short = base64.b64encode(body[:-10]).decode()
    assert "the key file is cut off" in str(key_problem(f"{lines[0]}\n\n{short}\n{lines[-1]}\n", KEY_FINGERPRINT))


@pytest.mark.parametrize("cut", range(60, len(KEY) - 40, 37))
def test_a_damaged_key_is_refused_and_never_a_traceback(cut: int) -> None:
    damaged = KEY[:cut] + KEY[cut + 9 :]
    assert key_problem(damaged, KEY_FINGERPRINT) is not None
