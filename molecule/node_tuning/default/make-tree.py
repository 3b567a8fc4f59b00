"""Make a small /sys and /proc with what the role sets, and a stand-in for update-grub."""

import os

ROOT = "/srv/tree"
FILES = {
    "proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.1.0-40-amd64 root=/dev/sda1 ro quiet\n",
    "proc/sys/kernel/numa_balancing": "1\n",
    "proc/sys/vm/swappiness": "60\n",
    "proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "dev/shm/.keep": "",
}
for cpu in range(2):
    FILES["sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor" % cpu] = "schedutil\n"
    for state in range(3):
        FILES["sys/devices/system/cpu/cpu%d/cpuidle/state%d/disable" % (cpu, state)] = "0\n"
for path, text in FILES.items():
    os.makedirs(os.path.dirname(os.path.join(ROOT, path)), exist_ok=True)
    with open(os.path.join(ROOT, path), "w") as handle:
        handle.write(text)

# A bridge with two extended capabilities, the second of them ACS with its control register set.
space = bytearray(4096)
space[0x100:0x104] = (0x0001 | 1 << 16 | 0x150 << 20).to_bytes(4, "little")
space[0x150:0x154] = (0x000D | 1 << 16).to_bytes(4, "little")
space[0x156:0x158] = (0x001D).to_bytes(2, "little")
os.makedirs(ROOT + "/sys/bus/pci/devices/0000:00:01.1", exist_ok=True)
with open(ROOT + "/sys/bus/pci/devices/0000:00:01.1/config", "wb") as handle:
    handle.write(bytes(space))

UPDATE_GRUB = """\
#!/bin/sh
# Writes the one line that matters, from the files that the real program reads.
[ "$1" != --help ] || exit 0
GRUB_CMDLINE_LINUX=
. /etc/default/grub
for file in /etc/default/grub.d/*.cfg; do [ ! -e "$file" ] || . "$file"; done
mkdir -p /boot/grub
echo "	linux	/boot/vmlinuz-6.1.0-40-amd64 root=/dev/sda1 ro $GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT" > /boot/grub/grub.cfg
"""
with open("/usr/sbin/update-grub", "w") as handle:
    handle.write(UPDATE_GRUB)
os.chmod("/usr/sbin/update-grub", 0o755)
with open("/etc/default/grub", "w") as handle:
    handle.write('GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n')
