"""A two-socket machine for the test bench, emulated without KVM. Standard library only.

    python3 molecule/bench/machine.py up NAME [--profile mi300x_8] [--boot kernel|disk]
    python3 molecule/bench/machine.py restart NAME              power off and on again; its disk keeps what is on it
    python3 molecule/bench/machine.py down [NAME...]            without a name: every machine, and the image

Two NUMA nodes with a CPU, memory and distances of their own; for each GPU a PCIe root on the NUMA node of its socket,
and in it a device at the GPU's address. numactl, /proc, /sys, the kernel command line and a reboot are real; the tools
of AMD are replayed, as on the simulated nodes. `ssh -F .cache/machines/NAME/ssh_config NAME` opens a shell.

Started with `--boot kernel`, QEMU loads the kernel and gives it the command line that an accepted node has, and what is
written to the disk is gone when the machine ends. With `--boot disk` GRUB is read from the machine's disk, so what
update-grub wrote decides what boots, and the disk keeps all that is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench
from bench import CACHE, REPO, BenchError, ask, run, say

IMAGES = CACHE / "machine-images"
MACHINES = CACHE / "machines"
#: What the machine needs on this host, by the program that shows it is there.
HOST_PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "ssh": "openssh-client",
}
PACKAGES = [
    "curl",
    "dbus",
    "grub-pc-bin",
    "grub2-common",
    "iproute2",
    "kmod",
    "linux-image-cloud-amd64",
    "numactl",
    "openssh-server",
    "pciutils",
    "procps",
    "python3",
    "systemd",
    "systemd-sysv",
    "udev",
]
#: KVM may be there and hang (nested virtualisation); emulation works everywhere. A machine that reboots runs its CPUs
#: in turn: with a thread for each, a reboot ended with the first CPU waiting for ever for the second to start.
ACCELERATORS = {"kernel": "tcg,thread=multi", "disk": "tcg,thread=single"}
#: One is enough to tell the nodes apart. Two more virtual CPUs than real ones made a boot on two busy cores 200 s
#: instead of 28 s, since they wait for each other.
CPUS_PER_NODE = 1
MIB_PER_NODE = 1536
BOOT_TIMEOUT = 300
#: Where the machines' SSH servers are reached on 127.0.0.1: the first one that is free.
PORTS = range(22200, 22300)
#: What each machine needs to boot, and speed under emulation.
BARE_CMDLINE = (
    "rdinit=/bench-init console=ttyS0 loglevel=4 systemd.show_status=no mitigations=off random.trust_cpu=on "
    "tsc=reliable"
)
#: With what an accepted node has. NUMA balancing would move pages while tests look at them.
CMDLINE = f"{BARE_CMDLINE} numa_balancing=disable iommu=pt pci=realloc=off"
SECTOR = 512
#: The one partition begins where installers put it, and leaves GRUB the sectors before it.
PARTITION_START = 2048
DISK_MIB = 2048
#: What can stand for a GPU. The first needs nothing; the second has AMD's vendor number and the class of a display, so
#: that what counts GPUs on the PCI bus finds them.
STAND_INS = {"kernel": "pci-testdev", "disk": "ati-vga,romfile=,vgamem_mb=1"}

#: Written before packages are installed, so that the one initramfs that is built holds four modules, not hundreds. Its
#: own init waits for no udev: under emulation that saves most of the time between the kernel and systemd.
BEFORE_PACKAGES = r"""
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/etc/initramfs-tools/hooks"
printf 'MODULES=list\nCOMPRESS=gzip\n' > "$1/etc/initramfs-tools/conf.d/bench.conf"
cat > "$1/etc/initramfs-tools/hooks/bench" <<'HOOK'
#!/bin/sh
[ "$1" = prereqs ] && exit 0
. /usr/share/initramfs-tools/hook-functions
manual_add_modules virtio_pci virtio_blk virtio_net ext4
cat > "$DESTDIR/bench-init" <<'INIT'
#!/bin/sh
mkdir -p /proc /sys /dev /root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
modprobe -a virtio_pci virtio_blk virtio_net ext4
until [ -b /dev/vda1 ] && [ -b /dev/vdb ]; do sleep 0.1; done
mount -t ext4 /dev/vda1 /root
mount -t ext4 -o ro /dev/vdb /root/opt/replay
read -r name < /root/opt/replay/hostname
echo "$name" > /proc/sys/kernel/hostname
mount -o move /dev /root/dev
umount /sys
umount /proc
exec run-init /root /sbin/init < /root/dev/console > /root/dev/console 2>&1
INIT
chmod 0755 "$DESTDIR/bench-init"
HOOK
chmod 0755 "$1/etc/initramfs-tools/hooks/bench"
"""
#: The machine reaches nothing and is reached by SSH alone. The seed disk is the machine's own; this image is shared.
AFTER_PACKAGES = r"""
mkdir -p "$1/opt/replay"
cat > "$1/etc/ssh/sshd_config.d/bench.conf" <<'SSHD'
UsePAM no
UseDNS no
PrintMotd no
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /opt/replay/authorized_keys
SSHD
rm -f "$1"/etc/ssh/ssh_host_rsa_key* "$1"/etc/ssh/ssh_host_ecdsa_key*
printf 'd /dev/dri 0755 root root -\nc /dev/kfd 0660 root render - 1:3\n' > "$1/etc/tmpfiles.d/bench.conf"
for minor in 128 129 130 131 132 133 134 135; do
    printf 'c /dev/dri/renderD%s 0660 root render - 1:3\n' "$minor" >> "$1/etc/tmpfiles.d/bench.conf"
done
cat > "$1/etc/systemd/system/bench-network.service" <<'UNIT'
[Unit]
Description=Give the one network card its address
Before=network.target
[Service]
Type=oneshot
ExecStart=/sbin/ip link set eth0 up
ExecStart=/sbin/ip address replace 10.0.2.15/24 dev eth0
RemainAfterExit=yes
[Install]
WantedBy=multi-user.target
UNIT
cat > "$1/etc/systemd/system/bench-replay.service" <<'UNIT'
[Unit]
Description=Lay the GPUs of the profile over this machine's own /sys
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -S -I /opt/replay/bin/mirror-root /opt/replay/root /run/replay
RemainAfterExit=yes
[Install]
WantedBy=multi-user.target
UNIT
chroot "$1" systemctl enable bench-network.service bench-replay.service ssh.service
# Nothing here is hot-plugged, kept or logged in to, and each unit costs a second or more under emulation.
chroot "$1" systemctl mask getty.target systemd-timesyncd.service systemd-networkd.service \
    systemd-network-generator.service systemd-udevd.service systemd-udev-trigger.service \
    systemd-udev-settle.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-pstore.service \
    systemd-random-seed.service systemd-journal-flush.service systemd-binfmt.service systemd-update-utmp.service \
    systemd-update-utmp-runlevel.service systemd-machine-id-commit.service systemd-sysusers.service \
    systemd-firstboot.service proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount \
    modprobe@.service kmod-static-nodes.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-tmpfiles-clean.timer
# `shutdown` asks logind over the bus, as on a real node; both start when they are asked.
rm -f "$1"/lib/systemd/system/multi-user.target.wants/systemd-logind.service \
    "$1"/lib/systemd/system/multi-user.target.wants/dbus.service
mkdir -p "$1/etc/systemd/system-generators"
for path in "$1"/lib/systemd/system-generators/*; do
    ln -s /dev/null "$1/etc/systemd/system-generators/${path##*/}"
done
# Without a machine id systemd would take each boot for the first and apply every preset.
printf '0123456789abcdef0123456789abcdef\n' > "$1/etc/machine-id"
rm -f "$1/etc/hostname"
# What grub-install does, without a disk to do it on. The menu is the one of a bare node: no update-grub wrote it.
mkdir -p "$1/boot/grub/i386-pc"
cp "$1"/usr/lib/grub/i386-pc/*.mod "$1"/usr/lib/grub/i386-pc/*.lst "$1"/usr/lib/grub/i386-pc/boot.img \
    "$1/boot/grub/i386-pc/"
chroot "$1" grub-mkimage -O i386-pc -o /boot/grub/i386-pc/core.img -p '(hd0,msdos1)/boot/grub' biosdisk part_msdos ext2
kernel=$(basename "$1"/boot/vmlinuz-*)
cat > "$1/boot/grub/grub.cfg" <<GRUB
set timeout=0
menuentry 'As installed' {
    linux /boot/$kernel root=/dev/vda1 ro @CMDLINE@
    initrd /boot/initrd.img-${kernel#vmlinuz-}
}
GRUB
cat > "$1/etc/default/grub" <<'GRUB'
GRUB_DEFAULT=0
GRUB_TIMEOUT=0
GRUB_TERMINAL=console
GRUB_DISABLE_OS_PROBER=true
GRUB_DISABLE_RECOVERY=true
GRUB_DISABLE_SUBMENU=y
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="@CMDLINE@"
GRUB
# update-grub looks for what this machine has not, for seconds under emulation.
chmod a-x "$1"/etc/grub.d/05_debian_theme "$1"/etc/grub.d/20_linux_xen "$1"/etc/grub.d/30_*
rm -rf "$1"/var/cache/apt/*.bin "$1"/var/lib/apt/lists/*
"""


def image() -> Path:
    """Build the disk, kernel and initramfs unless they are there, and return their folder."""
    after = "\n".join(["set -e", *bench.SIMULATED_NODE, AFTER_PACKAGES.replace("@CMDLINE@", BARE_CMDLINE)])
    made_of = (bench.SUITE, PACKAGES, BEFORE_PACKAGES, after, PARTITION_START, DISK_MIB)
    recipe = hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]
    folder = IMAGES / recipe
    if (folder / "complete").is_file():
        return folder
    if os.geteuid() != 0:
        raise BenchError("the machine's file system holds files of other users; run as root to build it")
    say(f"building the machine image ({bench.SUITE})")
    shutil.rmtree(IMAGES, ignore_errors=True)
    tree = folder / "tree"
    tree.mkdir(parents=True)
    try:
        run(
            "building the machine image",
            [
                "mmdebstrap",
                "--variant=minbase",
                "--include=" + ",".join(PACKAGES),
                # Half of the time of an installation is waiting for a disk that nobody will miss.
                "--dpkgopt=force-unsafe-io",
                "--skip=cleanup/reproducible",
                *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")),
                f"--essential-hook={BEFORE_PACKAGES}",
                f"--customize-hook={after}",
                bench.SUITE,
                str(tree),
                *bench.mirror(),
            ],
            hint="Is the mirror reachable? BENCH_DEBIAN_MIRROR names another.",
        )
        for pattern, name in (("vmlinuz-*", "vmlinuz"), ("initrd.img-*", "initrd.img")):
            [found] = (tree / "boot").glob(pattern)
            shutil.copy(found, folder / name)
        shutil.copy(tree / "etc/ssh/ssh_host_ed25519_key.pub", folder / "host_key.pub")
        make_bootable_disk(tree, folder / "disk.img")
    finally:
        shutil.rmtree(tree)
    (folder / "complete").touch()
    return folder


def make_disk(tree: Path, disk: Path, size: str, *options: str) -> list[str]:
    """Return the command that writes a folder as a file system."""
    # No journal: a machine is powered off in order, or what is on its disk is not kept.
    return ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", *options, "-d", str(tree), str(disk), size]


def boot_sector(code: bytes) -> bytes:
    """Return a first sector: GRUB's code, and a table of one Linux partition, which is the rest of the disk."""
    sectors = DISK_MIB * (1 << 20) // SECTOR - PARTITION_START
    # Cylinders, heads and sectors that say: look at the numbers after them.
    entry = b"\x80\xfe\xff\xff\x83\xfe\xff\xff" + PARTITION_START.to_bytes(4, "little") + sectors.to_bytes(4, "little")
    return code[:440] + b"fleet\0" + entry + bytes(48) + b"\x55\xaa"


def make_bootable_disk(tree: Path, disk: Path) -> None:
    """Write a folder as a disk with one partition, with GRUB before it as grub-install puts it there."""
    start = PARTITION_START * SECTOR
    with disk.open("wb") as handle:
        handle.truncate(DISK_MIB << 20)
    size = f"{DISK_MIB * 1024 - start // 1024}k"
    run("making the machine's disk", make_disk(tree, disk, size, "-E", f"offset={start}"))
    core = (tree / "boot/grub/i386-pc/core.img").read_bytes()
    if SECTOR + len(core) > start:
        raise BenchError(f"GRUB has {len(core)} bytes, expected at most {start - SECTOR} before the partition")
    with disk.open("r+b") as handle:
        handle.write(boot_sector((tree / "boot/grub/i386-pc/boot.img").read_bytes()))
        # The code of the first sector looks for the rest in the second, and that one for its own rest behind it.
        handle.write(core)


def gpu_devices(profile: Any, stand_in: str = STAND_INS["kernel"]) -> list[str]:
    """Return QEMU's options for a PCIe root on the right NUMA node, and a stand-in in it, for each GPU of a profile.

    The device below a root port is on the bus after the root's own, so each GPU comes to its address in the profile.
    """
    options = []
    for number, (bdf, numa) in enumerate(zip(profile.bdfs, profile.numa, strict=True)):
        domain, bus, rest = bdf.split(":")
        if domain != "0000" or rest != "00.0" or numa is None:
            raise BenchError(
                f"profile {profile.name} has a GPU at {bdf} on NUMA node {numa}; expected 0000:xx:00.0 and a node"
            )
        root = int(bus, 16) - 1
        options += ["-device", f"pxb-pcie,id=root{number},bus_nr={root},numa_node={numa},bus=pcie.0"]
        options += ["-device", f"pcie-root-port,id=port{number},bus=root{number},chassis={number + 1}"]
        options += ["-device", f"{stand_in},bus=port{number}"]
    return options


def qemu(name: str, folder: Path, base: Path, profile: Any, *, ssh_port: int, boot: str) -> list[str]:
    """Return the command line that boots a machine and leaves it in the background."""
    nodes = len(profile.nodes)
    argv = ["qemu-system-x86_64", "-name", name, "-machine", "q35", "-cpu", "max"]
    argv += ["-accel", os.environ.get("BENCH_MACHINE_ACCEL", ACCELERATORS[boot])]
    argv += ["-nodefaults", "-no-user-config", "-display", "none", "-serial", f"file:{folder / 'console.log'}"]
    argv += [
        "-smp",
        f"{nodes * CPUS_PER_NODE},sockets={nodes},cores={CPUS_PER_NODE},threads=1",
        "-m",
        f"{nodes * MIB_PER_NODE}M",
    ]
    for node in range(nodes):
        first = node * CPUS_PER_NODE
        argv += ["-object", f"memory-backend-ram,size={MIB_PER_NODE}M,id=memory{node}"]
        argv += ["-numa", f"node,nodeid={node},cpus={first}-{first + CPUS_PER_NODE - 1},memdev=memory{node}"]
    for a in range(nodes):
        argv += [
            o for b in range(a + 1, nodes) for o in ("-numa", f"dist,src={a},dst={b},val={profile.socket_distance}")
        ]
    if boot == "kernel":
        argv += ["-kernel", str(base / "vmlinuz"), "-initrd", str(base / "initrd.img"), "-append", CMDLINE]
        # Writes go to a file that QEMU removes when it ends; the image stays as it was built.
        disk = f"{base / 'disk.img'},snapshot=on"
    else:
        disk = f"{folder / 'disk.img'},cache=unsafe"
    # Every device of the machine names its bus, since QEMU would put one that does not into the first GPU's root.
    argv += ["-drive", f"file={disk},format=raw,if=none,id=disk"]
    # The kernel that QEMU is given has boot index 0.
    argv += ["-device", "virtio-blk-pci,drive=disk,bus=pcie.0,addr=3,bootindex=1"]
    argv += ["-drive", f"file={folder / 'seed.img'},format=raw,if=none,id=seed,read-only=on"]
    argv += ["-device", "virtio-blk-pci,drive=seed,bus=pcie.0,addr=4"]
    argv += ["-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"]
    argv += ["-device", "virtio-net-pci,netdev=net,romfile=,bus=pcie.0,addr=5"]
    argv += [*gpu_devices(profile, STAND_INS[boot]), "-daemonize", "-pidfile", str(folder / "pid")]
    return argv


def write_seed(name: str, folder: Path, profile: Any) -> None:
    """Write the machine's own disk: the replayed tools, the profile's tree, and the key that may log in."""
    tree = folder / "seed"
    bench.render(profile, tree)
    for program in ("mirror-root", "vllm"):
        shutil.copy(REPO / "molecule/replay" / program, tree / "bin" / program)
    run(
        f"making a key for {name}",
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / "key")],
    )
    shutil.copy(folder / "key.pub", tree / "authorized_keys")
    (tree / "hostname").write_text(f"{name}\n")
    run(f"making the seed disk of {name}", make_disk(tree, folder / "seed.img", "16M"))
    shutil.rmtree(tree)


def write_ssh_config(name: str, folder: Path, base: Path, ssh_port: int) -> None:
    """Write what ssh, Ansible and testinfra need to reach the machine: ``ssh -F FOLDER/ssh_config NAME``."""
    kind, key, *_comment = (base / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{ssh_port} {kind} {key}\n")
    options = {
        "HostName": "127.0.0.1",
        "Port": ssh_port,
        "User": "root",
        "IdentityFile": folder / "key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / "known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        # Cheap ones, since a handshake under emulation takes seconds.
        "KexAlgorithms": "curve25519-sha256",
        "ConnectTimeout": 60,
        "ServerAliveInterval": 15,
    }
    # One connection for all that follows. The path of a socket is short, or it is none.
    if len(str(folder / "mux")) < 85:
        options |= {"ControlMaster": "auto", "ControlPath": folder / "mux", "ControlPersist": 120}
    lines = [f"Host {name}", *(f"    {key} {value}" for key, value in options.items())]
    (folder / "ssh_config").write_text("\n".join(lines) + "\n")


def pid_of(folder: Path) -> int | None:
    """Return the process of a machine, or None when it does not run. A number that another program got is not taken."""
    try:
        pid = int((folder / "pid").read_text())
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except (OSError, ValueError):
        return None
    return pid if str(folder / "pid") in argv else None


def wait_for_ssh(name: str, folder: Path, ssh_port: int) -> None:
    """Wait until the machine's SSH server says its name. Shows a line of progress every five seconds."""
    started = said = time.monotonic()
    while True:
        try:
            with socket.create_connection(("127.0.0.1", ssh_port), timeout=2) as connection:
                connection.settimeout(2)
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            pass
        now = time.monotonic()
        console = (folder / "console.log").read_text("utf-8", "replace") if (folder / "console.log").exists() else ""
        last = next((line for line in reversed(console.splitlines()) if line.strip()), "").strip()[-100:]
        if pid_of(folder) is None:
            raise BenchError(f"{name} ended while it booted; its console said last: {last!r}")
        if now - started > BOOT_TIMEOUT:
            raise BenchError(f"{name} does not answer after {BOOT_TIMEOUT} s; its console said last: {last!r}")
        if now - said >= 5:
            said = now
            print(f"... booting {name}: {now - started:.0f} s  {last}", file=sys.stderr, flush=True)
        time.sleep(0.3)


def free_ports() -> Iterator[int]:
    """Yield the ports on which nothing listens now. Another one may be quicker, so whoever takes one looks again."""
    for port in PORTS:
        with socket.socket() as probe:
            # As QEMU binds: a connection that ended lately is in nobody's way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port


def describe(profile: str) -> Any:
    """Return a profile with the CPUs and memory that the machine has."""
    found = bench.load_profile(profile)
    cpus = [f"{n * CPUS_PER_NODE}-{(n + 1) * CPUS_PER_NODE - 1}" for n in range(len(found.nodes))]
    return dataclasses.replace(bench.with_nodes(found, [(c, MIB_PER_NODE << 20) for c in cpus]), cmdline=CMDLINE)


def start(name: str, folder: Path, base: Path, *, profile: str, boot: str) -> None:
    """Power a machine on and wait until it is up. Its SSH server is at the first port that is free."""
    started = time.monotonic()
    for ssh_port in free_ports():
        say(f"booting {name} ({profile}, {boot}), SSH on 127.0.0.1:{ssh_port}")
        try:
            run(f"starting {name}", qemu(name, folder, base, describe(profile), ssh_port=ssh_port, boot=boot))
        except BenchError as exc:
            if "host forwarding" not in str(exc):
                raise
            say(f"another program took port {ssh_port} first")
            continue
        break
    else:
        raise BenchError(f"no port of 127.0.0.1 is free, expected one from {PORTS[0]} to {PORTS[-1]}")
    write_ssh_config(name, folder, base, ssh_port)
    wait_for_ssh(name, folder, ssh_port)
    state = run(
        f"waiting for {name} to be up",
        [*ssh(name, folder), "systemctl is-system-running --wait || systemctl --failed --plain --no-legend"],
    )
    if state.split()[:1] != ["running"]:
        raise BenchError(f"{name} is not running after its boot: {state}")
    say(f"{name} is up after {time.monotonic() - started:.0f} s")


def ssh(name: str, folder: Path, *options: str) -> list[str]:
    """Return the command line that runs what follows it on a machine."""
    return ["ssh", "-F", str(folder / "ssh_config"), *options, name]


def up(name: str, *, profile: str, boot: str) -> None:
    """Boot a machine unless it runs."""
    base = image()
    folder = MACHINES / name
    wanted = f"{base.name} {profile} {boot}\n"
    stamp = folder / "booted"
    if pid_of(folder) is not None and stamp.is_file() and stamp.read_text() == wanted:
        return
    stop(name)
    folder.mkdir(parents=True)
    write_seed(name, folder, describe(profile))
    if boot == "disk":
        run(f"copying the disk of {name}", ["cp", "--sparse=always", str(base / "disk.img"), str(folder / "disk.img")])
    start(name, folder, base, profile=profile, boot=boot)
    stamp.write_text(wanted)


def restart(name: str) -> None:
    """Power a machine off, in order, and on again."""
    folder = MACHINES / name
    try:
        base, profile, boot = (folder / "booted").read_text().split()
    except (OSError, ValueError):
        raise BenchError(f"there is no machine {name}; `up {name} --boot disk` makes one") from None
    if boot != "disk":
        raise BenchError(f"{name} loses its disk with its power, since it was not started with --boot disk")
    pid = pid_of(folder)
    if pid is not None:
        # A connection of its own, since the shared one would hang on a machine that is gone.
        ask([*ssh(name, folder, "-o", "ControlPath=none"), "systemctl poweroff"])
        deadline = time.monotonic() + 120
        while pid_of(folder) == pid:
            if time.monotonic() > deadline:
                raise BenchError(f"{name} does not power off within 120 s")
            time.sleep(0.1)
        ask([*ssh(name, folder, "-O", "exit")])
    start(name, folder, IMAGES / base, profile=profile, boot=boot)


def stop(name: str) -> None:
    """End a machine and remove its files."""
    folder = MACHINES / name
    pid = pid_of(folder)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while pid_of(folder) == pid:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def down(names: list[str]) -> None:
    """Remove machines; without names every machine, and the image."""
    everything = not names
    if everything and MACHINES.is_dir():
        names = sorted(entry.name for entry in MACHINES.iterdir())
    for name in names:
        stop(name)
    if everything:
        shutil.rmtree(IMAGES, ignore_errors=True)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("image")
    one = commands.add_parser("up")
    one.add_argument("name")
    one.add_argument("--profile", default="mi300x_8")
    one.add_argument("--boot", choices=sorted(STAND_INS), default="kernel")
    commands.add_parser("restart").add_argument("name")
    commands.add_parser("down").add_argument("names", nargs="*")
    args = parser.parse_args()
    for value in [getattr(args, "name", ""), *getattr(args, "names", [])]:
        if value and not re.fullmatch(r"[a-z0-9][a-z0-9-]*", value):
            parser.error(f"name is {value!r}, expected lower case letters, digits and dashes")
    try:
        if args.command == "down":
            down(args.names)
            return 0
        bench.install([package for program, package in HOST_PACKAGES.items() if not shutil.which(program)])
        if args.command == "image":
            image()
        elif args.command == "restart":
            restart(args.name)
        else:
            up(args.name, profile=args.profile, boot=args.boot)
    except BenchError as exc:
        print(f"machine: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("machine: interrupted; `make demo-down` removes what was started", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
