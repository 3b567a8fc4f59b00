"""Make a small /sys and /proc with what the role sets, and a stand-in for update-grub."""

from pathlib import Path

ROOT = Path("/srv/tree")
FILES = {
    "proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.1.0-40-amd64 root=/dev/sda1 ro quiet\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "dev/shm/.keep": "",
}
for cpu in range(2):
    FILES[f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"] = "schedutil\n"
    for state in range(3):
        FILES[f"sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}/disable"] = "0\n"
for path, text in FILES.items():
    (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
    (ROOT / path).write_text(text)

# A bridge with two extended capabilities, the second of them ACS with its control register set.
space = bytearray(4096)
space[0x100:0x104] = (0x0001 | 1 << 16 | 0x150 << 20).to_bytes(4, "little")
space[0x150:0x154] = (0x000D | 1 << 16).to_bytes(4, "little")
space[0x156:0x158] = (0x001D).to_bytes(2, "little")
bridge = ROOT / "sys/bus/pci/devices/0000:00:01.1"
bridge.mkdir(parents=True, exist_ok=True)
(bridge / "config").write_bytes(bytes(space))

UPDATE_GRUB = """\
#!/bin/sh
# Writes the one line that matters, from the files that the real program reads.
[ "$1" != --help ] || exit 0
GRUB_CMDLINE_LINUX=
. /etc/default/grub
for file in /etc/default/grub.d/*.cfg; do [ ! -e "$file" ] || . "$file"; done
mkdir -p /boot/grub
kernel="/boot/vmlinuz-6.1.0-40-amd64 root=/dev/sda1"
echo "	linux	$kernel ro $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT" > /boot/grub/grub.cfg
"""
program = Path("/usr/sbin/update-grub")
program.write_text(UPDATE_GRUB)
program.chmod(0o755)
Path("/etc/default/grub").write_text('GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n')
