"""Build signed apt repositories with the layout and the package names of AMD's, and one that stands for a distribution.

    python3 tests/support/apt_repository.py FOLDER

Every package is tiny and does what the role `rocm` looks at: the driver registers with a `dkms` that keeps its
state in files, headers make a kernel one that can be built for. Needs `gpg` and `dpkg-deb`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Kernels that the nodes of the scenarios are said to boot: of Debian 12 and 13, and of Ubuntu 22.04 and 24.04.
KERNELS = ("6.1.0-40-amd64", "6.12.48+deb13-amd64", "5.15.0-157-generic", "6.8.0-86-generic")
SUITES = {"jammy": "22.04", "noble": "24.04"}
#: Release -> what AMD's versions of it look like, and the suites that it is published for here.
ROCM = {
    "7.0.2": ("70002-56", ("jammy", "noble")),
    "7.1": ("70100-20", ("jammy", "noble")),
    "7.2.3": ("70203-1", ("noble",)),
}
DRIVERS = {
    "30.10.2": ("30100200-2212064", ("jammy", "noble")),
    "30.20": ("30200000-2238411", ("jammy", "noble")),
    "30.30.3": ("30300300-2300000", ("noble",)),
}


@dataclass(frozen=True)
class Package:
    """A package to build. ``files`` are path -> (text, mode); ``scripts`` are maintainer scripts by name."""

    name: str
    version: str
    depends: str = ""
    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)


class Signer:
    """An OpenPGP key of its own, made anew: nothing but the tests trusts it."""

    def __init__(self, home: Path, name: str) -> None:
        """Make the key below ``home``, a short path, since gpg's agent listens on a socket there."""
        self.home = home
        home.mkdir(mode=0o700, parents=True)
        self._gpg("--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "never")
        listing = self._gpg("--with-colons", "--list-keys").decode()
        self.fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))

    def _gpg(self, *arguments: str, data: bytes = b"") -> bytes:
        argv = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--pinentry-mode", "loopback", *arguments]
        process = subprocess.run(argv, input=data, capture_output=True, check=False)
        if process.returncode != 0:
            raise RuntimeError(f"gpg failed: {process.stderr.decode('utf-8', 'replace').strip()}")
        return process.stdout

    def public(self) -> str:
        """Return the public key, armoured."""
        return self._gpg("--armor", "--export").decode()

    def clearsign(self, text: str) -> str:
        """Return the text with its signature around it, as InRelease is."""
        return self._gpg("--passphrase", "", "--clearsign", data=text.encode()).decode()

    def close(self) -> None:
        """End the agent that gpg started for this key."""
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=False, capture_output=True)


def build_deb(package: Package, folder: Path) -> tuple[Path, str]:
    """Build one package and return its file and its control fields."""
    control = (
        f"Package: {package.name}\nVersion: {package.version}\nArchitecture: all\n"
        f"Maintainer: instinct-fleet tests <nobody@example.org>\nDescription: {package.name}, for tests\n"
    )
    if package.depends:
        control += f"Depends: {package.depends}\n"
    target = folder / f"{package.name}_{package.version.replace(':', '%3a')}_all.deb"
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(control)
        for name, text in package.scripts.items():
            (root / "DEBIAN" / name).write_text("#!/bin/sh\nset -e\n" + text)
            (root / "DEBIAN" / name).chmod(0o755)
        for path, (text, mode) in package.files.items():
            target_file = root / path.lstrip("/")
            target_file.parent.mkdir(parents=True, exist_ok=True)
            target_file.write_text(text)
            target_file.chmod(mode)
        argv = ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(root), str(target)]
        subprocess.run(argv, check=True, capture_output=True)
    return target, control


def write_repository(
    root: Path, suite: str, packages: Sequence[Package], signer: Signer, *, origin: str, tamper: bool = False
) -> None:
    """Write one suite of a repository below ``root``, signed.

    ``tamper`` changes the signed text afterwards, as a damaged or dishonest mirror would.
    """
    pool = root / "pool"
    pool.mkdir(parents=True, exist_ok=True)
    entries = []
    for package in packages:
        deb, control = build_deb(package, pool)
        data = deb.read_bytes()
        entries.append(
            f"{control}Filename: pool/{deb.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    index = "\n".join(entries).encode()
    place = root / "dists" / suite
    binary = place / "main/binary-amd64"
    binary.mkdir(parents=True, exist_ok=True)
    sums = ""
    for name, data in (("Packages", index), ("Packages.gz", gzip.compress(index, mtime=0))):
        (binary / name).write_bytes(data)
        sums += f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-amd64/{name}\n"
    release = (
        f"Origin: {origin}\nLabel: {origin}\nSuite: {suite}\nCodename: {suite}\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\nArchitectures: amd64\nComponents: main\nAcquire-By-Hash: no\n"
        f"SHA256:\n{sums}"
    )
    signed = signer.clearsign(release)
    (place / "InRelease").write_text(signed.replace("Components: main", "Components: main evil") if tamper else signed)


DKMS = """\
#!/bin/sh
# State in files: one folder for each version, one below it for each kernel that it is built for.
state=/var/lib/dkms/amdgpu
case "$1" in
status)
    for version in "$state"/*/; do
        [ -d "$version" ] || exit 0
        v=$(basename "$version")
        found=
        for kernel in "$version"*/; do
            [ -d "$kernel" ] || continue
            found=1
            echo "amdgpu/$v, $(basename "$kernel"), x86_64: installed"
        done
        [ -n "$found" ] || echo "amdgpu/$v: added"
    done ;;
autoinstall)
    [ -d "/lib/modules/$3/build" ] || { echo "Error! Your kernel headers for kernel $3 cannot be found." >&2; exit 11; }
    [ ! -e /etc/dkms-cannot-build ] || { echo "Error! Bad return status for module build on kernel: $3" >&2; exit 10; }
    for version in "$state"/*/; do
        [ -d "$version" ] || exit 0
        mkdir -p "$version$3" "/lib/modules/$3/updates/dkms"
        touch "/lib/modules/$3/updates/dkms/amdgpu.ko"
    done ;;
remove)
    rm -rf "/var/lib/dkms/$2" /lib/modules/*/updates/dkms/amdgpu.ko ;;
esac
"""
MODINFO = """\
#!/bin/sh
for file in /lib/modules/*/updates/dkms/amdgpu.ko /lib/modules/*/extra/amdgpu.ko; do
    [ ! -e "$file" ] || { echo "$file"; exit 0; }
done
echo "modinfo: ERROR: Module amdgpu not found." >&2
exit 1
"""


def rocm_packages(release: str, suite: str) -> list[Package]:
    """Return the packages of one ROCm release."""
    mark = f"{ROCM[release][0]}~{SUITES[suite]}"
    full = ".".join(([*release.split("."), "0"])[:3])

    def tool(name: str, version: str, depends: str = "") -> Package:
        text = f"#!/bin/sh\necho {name} {version}.{mark}\n"
        core = f"rocm-core (= {full}.{mark})"
        return Package(name, f"{version}.{mark}", depends or core, {f"/opt/rocm/bin/{name}": (text, 0o755)})

    return [
        Package("rocm-core", f"{full}.{mark}", "", {"/opt/rocm/.info/version": (full + "\n", 0o644)}),
        tool("rocminfo", "1.0.0"),
        tool("amd-smi-lib", "26.0.2"),
        tool("rccl", "2.27.7"),
        Package(
            "rocm", f"{full}.{mark}", f"rocm-core (= {full}.{mark}), rocminfo (= 1.0.0.{mark}), rccl (= 2.27.7.{mark})"
        ),
    ]


def driver_packages(release: str, suite: str) -> list[Package]:
    """Return the packages of one driver release."""
    version = f"1:6.14.14.{DRIVERS[release][0]}.{SUITES[suite]}"
    module = version.split(":")[1]
    configure = (
        '[ "$1" = configure ] || exit 0\n'
        '[ ! -e /etc/amdgpu-cannot-configure ] || { echo "amdgpu-dkms: cannot configure" >&2; exit 1; }\n'
        f"mkdir -p /var/lib/dkms/amdgpu/{module}\n"
        'for build in /lib/modules/*/build; do\n    [ -d "$build" ] || continue\n'
        '    dkms autoinstall -k "$(basename "$(dirname "$build")")" || true\ndone\n'
    )
    remove = f"dkms remove amdgpu/{module} --all\n"
    return [
        Package("amdgpu-dkms-firmware", version, "", {"/lib/firmware/updates/amdgpu/version": (version + "\n", 0o644)}),
        Package(
            "amdgpu-dkms",
            version,
            f"dkms, amdgpu-dkms-firmware (= {version})",
            {f"/usr/src/amdgpu-{module}/dkms.conf": (f'PACKAGE_VERSION="{module}"\n', 0o644)},
            {"postinst": configure, "prerm": remove},
        ),
    ]


def distribution_packages() -> list[Package]:
    """Return what the node's distribution offers: kernel headers, DKMS, and a rocminfo with a higher version."""
    headers = [
        Package(f"linux-headers-{kernel}", "1-1", "", {f"/lib/modules/{kernel}/build/Makefile": ("\n", 0o644)})
        for kernel in KERNELS
    ]
    # Ubuntu keeps parts of a kernel in a package of their own.
    extra = [Package(f"linux-modules-extra-{kernel}", "1-1") for kernel in KERNELS if kernel.endswith("-generic")]
    return [
        *headers,
        *extra,
        Package("dkms", "3.0.10-8", "kmod", {"/usr/sbin/dkms": (DKMS, 0o755)}),
        Package("kmod", "30-1", "", {"/usr/sbin/modinfo": (MODINFO, 0o755)}),
        Package("rocminfo", "99.0-1", "", {"/usr/bin/rocminfo": ("#!/bin/sh\necho distribution\n", 0o755)}),
        Package("amd-smi-lib", "99.0-1", "", {"/usr/bin/amd-smi-lib": ("#!/bin/sh\necho distribution\n", 0o755)}),
    ]


def write_mirror(root: Path, signer: Signer, *, tamper: bool = False) -> None:
    """Write a mirror with AMD's layout: rocm/apt/<release>, amdgpu/<release>/ubuntu, graphics/<release>/ubuntu."""
    for release, (_mark, suites) in ROCM.items():
        for suite in suites:
            packages = rocm_packages(release, suite)
            where = root / "rocm/apt" / release
            write_repository(where, suite, packages, signer, origin="repo.radeon.com", tamper=tamper)
            where = root / "graphics" / release / "ubuntu"
            write_repository(where, suite, [], signer, origin="repo.radeon.com")
    for release, (_mark, suites) in DRIVERS.items():
        for suite in suites:
            where = root / "amdgpu" / release / "ubuntu"
            write_repository(where, suite, driver_packages(release, suite), signer, origin="repo.radeon.com")
    (root / "rocm/rocm.gpg.key").write_text(signer.public())


def build(root: Path) -> dict[str, str]:
    """Build everything below ``root`` and return the fingerprints of the two keys.

    ``good``: a mirror as it should be. ``tampered``: its ROCm repositories were changed after they were signed.
    ``foreign``: everything is signed by another key. ``distribution``: what the node's own distribution offers.
    """
    shutil.rmtree(root, ignore_errors=True)
    # Short, since gpg's agent listens on a socket below it.
    with tempfile.TemporaryDirectory(prefix="gpg-") as homes:
        signer, stranger = Signer(Path(homes) / "a", "mirror"), Signer(Path(homes) / "b", "stranger")
        try:
            write_mirror(root / "good", signer)
            write_mirror(root / "tampered", signer, tamper=True)
            write_mirror(root / "foreign", stranger)
            packages = distribution_packages()
            write_repository(root / "distribution", "stable", packages, signer, origin="Debian")
        finally:
            signer.close()
            stranger.close()
        keys = {"fingerprint": signer.fingerprint, "foreign_fingerprint": stranger.fingerprint}
    (root / "keys.json").write_text(json.dumps(keys))
    return keys


def main() -> int:
    """Build the repositories unless what they are built from is unchanged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for program in ("gpg", "dpkg-deb"):
        if not shutil.which(program):
            print(f"{program} is missing; install the package that has it", file=sys.stderr)
            return 1
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    stamp = folder / "made-from"
    if not stamp.is_file() or stamp.read_text() != recipe:
        folder.parent.mkdir(parents=True, exist_ok=True)
        build(folder)
        stamp.write_text(recipe)
        print(f"built {folder}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
