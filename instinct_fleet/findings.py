"""Every finding that this project makes, in one table: what it means, how bad it is, what mends it.

``docs/findings.md`` is generated from :data:`CODES` by ``python -m instinct_fleet.docs``. Codes are stable: an alert,
an exception list or a runbook may rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from instinct_fleet.model import Finding, Severity
from instinct_fleet.parse.codes import COLLECTION

Area = Literal[
    "collection", "topology", "host", "fabric", "placement", "instance", "binding", "device_code", "arguments", "memory"
]

#: Heading and introduction of each area in docs/findings.md, in the order in which they appear there.
AREAS: dict[Area, tuple[str, str]] = {
    "collection": (
        "Collection",
        "Something could not be read. It says nothing about the node, and nothing good either: what was not read is "
        "unknown.",
    ),
    "topology": ("Topology", "The GPUs, the paths between them and the NUMA nodes, against the policy of the node."),
    "host": ("Host", "The machine around the GPUs: driver, rights, kernel command line, environment, memory."),
    "fabric": ("Fabric bandwidth", "The measured bandwidth of RCCL, against the floor of the policy."),
    "placement": ("Placement", "Which instance got which GPUs, and what could not be placed or bound."),
    "instance": ("Instance", "The inputs of one instance, where they are allowed but unwise."),
    "binding": ("Binding", "What a running unit really uses, against what placement planned for it."),
    "device_code": ("Device code", "Which GPUs the installed files hold code for (`instinct-fleet codeobjects`)."),
    "arguments": (
        "Arguments",
        "`vllm serve` arguments against the release that gets them (`instinct-fleet check-args`).",
    ),
    "memory": ("Memory", "Whether a model fits, and how much KV cache is left (`instinct-fleet fit`)."),
}


@dataclass(frozen=True)
class Code:
    """One kind of finding. ``severity`` is the default; a policy may raise or lower it."""

    area: Area
    severity: Severity
    title: str
    explanation: str
    remedy: str


def _codes() -> dict[str, Code]:
    """Return the table. Kept as a function so that each area reads as one block."""
    collection = {
        **{code: Code("collection", *entry) for code, entry in COLLECTION.items()},
        "not_collected": Code(
            "collection",
            "info",
            "Not asked of the tool that was read",
            "A rule of the policy needs a fact that nobody collected. A single capture is judged by what its tool can "
            "show, so there it is for information; in a full bundle of `node_probe` the fact is missing, so it is "
            "`unknown`.",
            "Run the command that the message names, or collect the node with `node_probe`.",
        ),
        "sources_disagree": Code(
            "collection",
            "unknown",
            "Two tools say different things",
            "The sources are cross-checked. Where two of them differ, neither is believed until a person looked.",
            "Run both commands again by hand; a tool of another ROCm release than the driver is the usual cause "
            "(`amd-smi version`).",
        ),
        "sources_disagree_advisory": Code(
            "collection",
            "warning",
            "Two tools differ in a figure that gates nothing",
            "Weights, hops, bandwidths and names are printed differently by releases. The figure of the more trusted "
            "source is used.",
            "None needed; compare the versions of the tools when it is unexpected.",
        ),
        "collect_changed_meanwhile": Code(
            "collection",
            "unknown",
            "The topology changed while it was read",
            "KFD's generation number was another one after reading than before it: a GPU was reset, partitioned or "
            "removed meanwhile.",
            "Collect again when no partition change, driver reload or GPU reset runs.",
        ),
        "simulated_hardware": Code(
            "collection",
            "info",
            "The GPUs are simulated",
            "The node says of itself that its GPUs are replayed. Nothing here says anything about real hardware.",
            "None needed on a test bench; on a real node remove `/etc/instinct-fleet-simulated`.",
        ),
    }
    topology = {
        "gpu_count": Code(
            "topology",
            "error",
            "Wrong number of GPUs",
            "Expected are physical GPUs times partitions of the declared mode.",
            "Compare `lspci -d 1002:` with `amd-smi list` and read `dmesg` for amdgpu probe errors; correct "
            "`topology_policy` or `topology_policy_overrides.physical_gpus` if the node is meant to be so.",
        ),
        "gpu_partition_missing": Code(
            "topology",
            "warning",
            "One partition has no device node",
            "With 64 partitions the DRM subsystem runs out of device numbers when another graphics driver (the BMC's "
            "`ast`) holds one. The GPUs are whole; one partition cannot be used.",
            "Blacklist the BMC's driver (`modprobe.blacklist=ast`) or leave that partition out.",
        ),
        "gpu_model": Code(
            "topology",
            "error",
            "A GPU of another model",
            "The PCI device id is not one that the policy names.",
            "Set `topology_policy` to the model that the node has, or replace the odd GPU.",
        ),
        "gpu_model_unknown": Code(
            "topology",
            "unknown",
            "Device id of a GPU not known",
            "Without it nobody can say whether the GPU is what the policy is about.",
            "Read `/sys/bus/pci/devices/<address>/device` or `amd-smi static --asic`.",
        ),
        "gpu_arch": Code(
            "topology",
            "error",
            "Wrong gfx target",
            "Code objects are built for one gfx target. A GPU that reports another one cannot run them.",
            "Remove `HSA_OVERRIDE_GFX_VERSION` wherever it is set; check `rocminfo | grep gfx` against the policy.",
        ),
        "gpu_arch_unknown": Code(
            "topology",
            "unknown",
            "gfx target not known",
            "Neither rocminfo nor KFD told the gfx target of the GPU.",
            "Run `rocminfo` as root; check that the driver is bound to the GPU.",
        ),
        "gpu_address_duplicate": Code(
            "topology",
            "unknown",
            "Two GPUs with one PCI address",
            "ROCm before 6.1 prints one address for several partitions. GPUs cannot be told apart by it.",
            "Update ROCm to 6.1 or later.",
        ),
        "gpu_index_order": Code(
            "topology",
            "info",
            "The tool's GPU numbers do not follow PCI addresses",
            "GPUs are numbered here in PCI address order; the tool numbers them in another one. Each is named by its "
            "address.",
            "None needed; do not copy the tool's numbers into `gpus` of an instance.",
        ),
        "hip_id_assumed": Code(
            "topology",
            "warning",
            "HIP number assumed",
            "`HIP_VISIBLE_DEVICES` takes the order of the ROCm runtime, which neither rocminfo nor KFD told. It is "
            "assumed to be the PCI address order, which holds on most machines but not on all.",
            "Install `rocminfo`, or collect with `amd-smi list -e`.",
        ),
        "link_not_xgmi": Code(
            "topology",
            "error",
            "A pair is not connected by XGMI",
            "On this model the pair must have an XGMI link. Over PCIe a collective runs at a fraction of its speed.",
            "Power-cycle the node; look at `amd-smi xgmi -l` for a link that is down and report the baseboard if it "
            "stays; take the node out of service meanwhile.",
        ),
        "link_unknown": Code(
            "topology",
            "unknown",
            "The path between two GPUs is not known",
            "The tool printed N/A, XXXX or nothing for the pair.",
            "Run `amd-smi topology` as root and read its stderr; update ROCm if a release cannot read the link.",
        ),
        "link_not_accessible": Code(
            "topology",
            "error",
            "No peer access between two GPUs",
            "The driver does not allow one GPU to read the other's memory, so RCCL copies through the host.",
            "Check `iommu=pt`, ACS, large BAR in the BIOS and CONFIG_HSA_AMD_P2P of the kernel.",
        ),
        "link_access_unknown": Code(
            "topology",
            "unknown",
            "Peer access between two GPUs not known",
            "The tool printed N/A or nothing for the pair.",
            "Run `amd-smi topology -a` as root.",
        ),
        "link_weight": Code(
            "topology",
            "info",
            "Unusual link weight",
            "A weight is the driver's estimate, and releases differ. It gates nothing.",
            "None needed when the type of the link is right.",
        ),
        "link_bandwidth": Code(
            "topology",
            "info",
            "Unusual or no bandwidth figure",
            "The figure is a constant of the driver, 0-0 between partitions and on some releases. It gates nothing.",
            "Measure with role `rccl_check` instead.",
        ),
        "hive_shape": Code(
            "topology",
            "error",
            "The XGMI groups have the wrong size",
            "The policy says how many GPUs share one XGMI group.",
            "See the pairs that are not XGMI; correct `topology_policy` if the node is another model.",
        ),
        "xgmi_link_down": Code(
            "topology",
            "error",
            "An XGMI link is down",
            "`amd-smi xgmi -l` shows D for the link. X (disabled, or the GPU itself) is normal.",
            "Power-cycle the node; if it stays down, the GPU or baseboard needs service.",
        ),
        "xgmi_status_unknown": Code(
            "topology",
            "unknown",
            "XGMI link status not known",
            "The tool printed N/A, as it does in virtual machines, or could not be read.",
            "Run `amd-smi xgmi -l` as root on the host. On a guest add `link_status` to "
            "`topology_policy_overrides.optional`.",
        ),
        "gpu_errors_uncorrectable": Code(
            "topology",
            "error",
            "Uncorrectable errors on a GPU",
            "RAS counted errors that could not be corrected, in memory (UMC) or in another block than XGMI.",
            "Take the node out of service and reset the GPU; replace it if the counter rises again.",
        ),
        "xgmi_errors_uncorrectable": Code(
            "topology",
            "error",
            "Uncorrectable errors on XGMI",
            "The XGMI_WAFL block of RAS counted errors that could not be corrected.",
            "Take the node out of service, reset the GPUs; replace the part if the counter rises again.",
        ),
        "xgmi_errors_correctable": Code(
            "topology",
            "warning",
            "Correctable errors on XGMI",
            "The XGMI_WAFL block of RAS counted errors that were corrected. A rising counter precedes a link that "
            "goes down.",
            "Watch the counter; plan service when it rises.",
        ),
        "xgmi_errors_unknown": Code(
            "topology",
            "unknown",
            "XGMI error counters not known",
            "The XGMI_WAFL counters are N/A. sysfs `xgmi_error` gives EINVAL on gfx942, so there is no other source.",
            "Run `amd-smi metric --ecc-blocks` as root. On a guest add `ecc` to `topology_policy_overrides.optional`.",
        ),
        "gpu_numa_unknown": Code(
            "topology",
            "unknown",
            "NUMA node of a GPU not known",
            "The kernel says -1 (ROCm up to 5.7 prints 4294967295). Nothing can be bound by it.",
            "Enable NUMA in the BIOS (`ACPI SRAT`), or pass the NUMA topology to the guest.",
        ),
        "gpu_numa_not_on_host": Code(
            "topology",
            "error",
            "A GPU names a NUMA node that the host does not have",
            "A binding to it would fail at start.",
            "Check `numactl -H`; the BIOS tables and the kernel's view differ: update the BIOS.",
        ),
        "gpu_numa_mismatch": Code(
            "topology",
            "warning",
            "Nearest NUMA node and affinity differ",
            "KFD's nearest CPU node is not the kernel's `numa_node` of the PCI device. It can be right on MI300A and "
            "in virtual machines; elsewhere the BIOS tables are wrong. `numa_node` is used.",
            "Update the BIOS; compare `cat /sys/bus/pci/devices/<address>/numa_node` with `rocm-smi --showtoponuma`.",
        ),
        "gpu_numa_spread": Code(
            "topology",
            "warning",
            "GPUs are not spread over the NUMA nodes as expected",
            "The model's baseboard connects a fixed number of GPUs to each socket.",
            "Check the BIOS setting NPS and that all NUMA nodes have memory.",
        ),
        "numa_nodes_unknown": Code(
            "topology",
            "unknown",
            "NUMA nodes of the host not known",
            "sysfs shows no NUMA node, or no CPUs of one.",
            "Check `ls /sys/devices/system/node` and CONFIG_NUMA of the kernel.",
        ),
        "partition_mode": Code(
            "topology",
            "error",
            "Partition mode is not the declared one",
            "Compute mode (SPX, DPX, QPX, CPX) or memory mode (NPS1, NPS2, NPS4) differ from the policy.",
            "`amd-smi set --compute-partition <mode>` / `--memory-partition <mode>` on an idle node, or declare the "
            "mode in `topology_policy_overrides.compute_partition` / `.memory_partition`.",
        ),
        "partition_invalid": Code(
            "topology",
            "error",
            "Compute and memory mode do not go together",
            "SPX with NPS4, for example, is not a valid pair.",
            "Set a valid pair: SPX+NPS1, DPX+NPS1 or NPS2, QPX+NPS1, CPX+NPS1 or NPS4.",
        ),
        "partition_unknown": Code(
            "topology",
            "unknown",
            "Partition mode not known",
            "The mode is N/A, as amd-smi says without root.",
            "Run `amd-smi partition` as root, or read `current_compute_partition` in sysfs.",
        ),
    }
    host = {
        "driver_not_loaded": Code(
            "host",
            "error",
            "amdgpu is not loaded",
            "No GPU can be used without the driver.",
            "`modprobe amdgpu`, then role `rocm`; remove `modprobe.blacklist=amdgpu` from the kernel command line "
            "unless something loads the driver later.",
        ),
        "gpu_without_driver": Code(
            "host",
            "error",
            "A GPU in the PCI tree is not held by amdgpu",
            "The GPU is in its slot but amdgpu did not take it, or vfio-pci keeps it for a guest, so every tool shows "
            "one GPU less and renumbers the rest.",
            "Read `dmesg | grep -i amdgpu` for the address; power-cycle; replace the GPU if it stays.",
        ),
        "gpu_failed": Code(
            "host",
            "error",
            "The kernel log holds a failure of a GPU",
            "amdgpu or PCI reported a hang, a failed reset, an uncorrectable hardware error or a failed XGMI set-up. "
            "Where the log only shows that a reset began, whether the GPU came back is unknown.",
            "Reset the GPU (`amd-smi reset --gpureset`) or reboot the node, then collect again; service it if it comes "
            "back.",
        ),
        "gpus_hidden": Code(
            "host",
            "error",
            "GPUs hidden from the ROCm runtime",
            "rocminfo shows fewer GPUs than the driver has. Only `ROCR_VISIBLE_DEVICES` (or a container's device "
            "rules) does that; amd-smi, rocm-smi and lspci do not follow it.",
            "Remove `ROCR_VISIBLE_DEVICES` from the files named; select GPUs with `HIP_VISIBLE_DEVICES` of each unit.",
        ),
        "env_hsa_override": Code(
            "host",
            "error",
            "HSA_OVERRIDE_GFX_VERSION is set",
            "It makes the runtime report another gfx target. Kernels built for the real one then fail or compute "
            "wrongly. It is a workaround for consumer GPUs, never right on Instinct.",
            "Remove the line from the file named.",
        ),
        "env_rocr_visible_devices": Code(
            "host",
            "warning",
            "ROCR_VISIBLE_DEVICES is set",
            "vLLM maps GPUs to physical numbers by HIP_VISIBLE_DEVICES only; with this variable its NUMA and memory "
            "queries ask other GPUs.",
            "Remove the line from the file named; units select their GPUs themselves.",
        ),
        "env_visible_devices": Code(
            "host",
            "warning",
            "A GPU selection is set for the whole system",
            "A unit that selects other GPUs than the system does fails at import, or sees fewer GPUs.",
            "Remove the line from the file named; units select their GPUs themselves.",
        ),
        "kfd_missing": Code(
            "host",
            "error",
            "/dev/kfd is absent",
            "Without it no compute is possible.",
            "Load amdgpu; in a container pass `--device /dev/kfd`.",
        ),
        "device_access": Code(
            "host",
            "error",
            "The service user may not use a device node",
            "The user can neither read nor write it, and vLLM says `No HIP GPUs are available`.",
            "Add the user to the groups that own the nodes: `usermod -aG render,video <user>`; role `vllm_serve` does.",
        ),
        "device_access_unknown": Code(
            "host",
            "unknown",
            "Rights on the device nodes not known",
            "No device node could be examined.",
            "Collect as root.",
        ),
        "service_user_absent": Code(
            "host",
            "info",
            "The service user does not exist yet",
            "Its rights cannot be judged before role `vllm_runtime` creates it.",
            "None needed before the first deployment; else create it or correct `vllm_user`.",
        ),
        "iommu_not_passthrough": Code(
            "host",
            "error",
            "iommu=pt is missing",
            "DMA between GPUs through a translating IOMMU makes RCCL hang or lose bandwidth.",
            "Role `node_tuning` adds `iommu=pt`; a reboot is needed (`node_tuning_reboot_allowed: true`).",
        ),
        "cmdline_missing": Code(
            "host",
            "warning",
            "A recommended kernel option is missing",
            "AMD's tuning guide of the model names it.",
            "Role `node_tuning` adds it; a reboot is needed (`node_tuning_reboot_allowed: true`).",
        ),
        "numa_balancing_on": Code(
            "host",
            "warning",
            "Automatic NUMA balancing is on",
            "The kernel unmaps pages to see who uses them, and GPUs stall until it is done.",
            "`sysctl -w kernel.numa_balancing=0`; role `node_tuning` keeps it.",
        ),
        "host_nps": Code(
            "host",
            "warning",
            "More than one NUMA node a socket",
            "AMD recommends NPS1 for serving on this model: with more nodes an instance spans them.",
            "Set NPS1 in the BIOS.",
        ),
        "host_smt": Code(
            "host",
            "warning",
            "SMT is not as declared",
            "AMD's acceptance guide has SMT off: two threads share a core, and the workers of vLLM poll.",
            "Set SMT control in the BIOS, or declare the one that is there (`smt` of the policy).",
        ),
        "host_memory": Code(
            "host",
            "warning",
            "Memory of the NUMA nodes differs",
            "The sockets have the same memory modules. Less on one is a module that failed or is missing, and what is "
            "bound there runs out first.",
            "Look for the module in `ipmitool sel list` and `dmidecode -t memory`; reseat or replace it.",
        ),
        "pcie_link_degraded": Code(
            "host",
            "error",
            "PCIe link slower or narrower than the GPU's",
            "Model loading and host copies run at a fraction of the speed, and the cause (a bad riser, a dirty "
            "contact) tends to get worse.",
            "Reseat the GPU or the riser, power-cycle, check the BIOS setting of the slot's generation.",
        ),
        "pcie_link_unknown": Code(
            "host",
            "unknown",
            "PCIe link of a GPU not known",
            "Neither sysfs nor lspci told speed and width.",
            "Run `lspci -vv` as root.",
        ),
        "pcie_fatal_error": Code(
            "host",
            "error",
            "A GPU's PCIe device reports a fatal error",
            "`FatalErr+` in the device status.",
            "Power-cycle the node; look at the BMC's log; replace the GPU if it comes back.",
        ),
        "acs_on": Code(
            "host",
            "warning",
            "ACS redirects peer traffic",
            "Where GPUs reach each other over PCIe, access control services on a bridge send every transfer up to the "
            "root complex. XGMI traffic is not affected.",
            "Switch ACS off in the BIOS on a host without virtual machines, or clear it at boot with setpci.",
        ),
        "acs_unknown": Code(
            "host",
            "info",
            "ACS not known",
            "GPUs reach each other over PCIe, and whether bridges redirect that traffic could not be read.",
            "Run `lspci -vv` as root and look for ACSCtl of the bridges.",
        ),
        "vram_leaked": Code(
            "host",
            "error",
            "VRAM in use without a process",
            "After a GPU hang or a killed worker memory can stay allocated; a new instance then does not fit.",
            "Reset the GPU (`amd-smi reset -g <index>`) when it is idle, else reboot the node.",
        ),
        "vram_unknown": Code(
            "host",
            "unknown",
            "VRAM use or its processes not known",
            "Whether memory is held by nobody could not be judged.",
            "Run `amd-smi metric -m` and `amd-smi process` as root.",
        ),
    }
    fabric = {
        "rccl_wrong_results": Code(
            "fabric",
            "error",
            "A collective computed wrong results",
            "#wrong is above 0. Speed does not matter then.",
            "Take the node out of service; check ECC counters and the RCCL version.",
        ),
        "rccl_bandwidth_low": Code(
            "fabric",
            "error",
            "RCCL bus bandwidth below the floor",
            "In-place bus bandwidth at the largest size, which must be large enough to be the plateau. Some figures "
            "are the signature of a known fault, which the message then names.",
            "Check iommu=pt, ACS, link types and the RCCL release; run it again on an idle node.",
        ),
        "rccl_no_floor": Code(
            "fabric",
            "warning",
            "No published floor for this number of GPUs",
            "The figure is shown against the links times the usable rate of one, and gates nothing.",
            "Set a floor from a measurement of a good node (`rccl_check_floors`).",
        ),
        "rccl_not_judged": Code(
            "fabric",
            "unknown",
            "The RCCL run cannot be judged",
            "No in-place row, results not checked (`-c 0`), only small sizes, or another number of GPUs than meant.",
            "Run `all_reduce_perf -b 8 -e 8G -f 2 -c 1`.",
        ),
        "rccl_init_timeout": Code(
            "fabric",
            "error",
            "RCCL does not start",
            "No result came before the time-out, also not with NCCL_ALGO=Ring and NCCL_NET_PLUGIN=none.",
            "Run it with NCCL_DEBUG=INFO; check network interfaces, `iommu=pt` and hung GPUs in dmesg.",
        ),
        "rccl_degraded": Code(
            "fabric",
            "warning",
            "RCCL starts with conservative settings only",
            "The run passed with NCCL_ALGO=Ring and NCCL_NET_PLUGIN=none and did not start without them.",
            "Give the instances these variables until the cause is found; update RCCL and its plugins.",
        ),
    }
    placement = {
        "placement_no_room": Code(
            "placement",
            "error",
            "Not enough free GPUs",
            "The instance needs more GPUs than are left.",
            "Lower its tensor_parallel_size, or remove an instance from `vllm_serve_instances` of the host.",
        ),
        "placement_across_hives": Code(
            "placement",
            "error",
            "No XGMI group holds the instance",
            "Tensor parallel workers talk at every layer. Each pair of them must have XGMI.",
            "Lower tensor_parallel_size to the size of the XGMI group, or split with pipeline_parallel_size.",
        ),
        "placement_links_unknown": Code(
            "placement",
            "error",
            "The links between the GPUs are not known",
            "A unit is not placed on links that nobody could read.",
            "Mend the collection first: see the findings of the topology.",
        ),
        "placement_pipeline_across_hives": Code(
            "placement",
            "info",
            "Pipeline stages in different XGMI groups",
            "Each stage lies in one group; the stages hand over activations by PCIe, which is what pipelines are for.",
            "None needed.",
        ),
        "placement_gpu_absent": Code(
            "placement",
            "error",
            "An instance names a GPU that the node does not have",
            "`gpus` holds numbers in PCI address order, from 0.",
            "Correct `gpus`, or leave it out and let placement choose.",
        ),
        "placement_spans_numa": Code(
            "placement",
            "info",
            "An instance spans NUMA nodes",
            "The server interleaves its memory and vLLM binds each worker to the node of its GPU (`--numa-bind`).",
            "None needed for an instance that does not fit one node; else lower tensor_parallel_size.",
        ),
        "placement_numa_unknown": Code(
            "placement",
            "warning",
            "No binding, since the NUMA node is not known",
            "The instance runs on whatever CPUs and memory the kernel picks.",
            "Mend the NUMA finding of the topology, or set `numa: off` for the instance to accept it.",
        ),
        "placement_vllm_too_old": Code(
            "placement",
            "warning",
            "No binding, since this vLLM cannot bind its workers",
            "`--numa-bind` exists from vLLM 0.20 on. One numactl around all workers would starve half the GPUs.",
            "Use vLLM 0.20 or later, or an instance that fits one NUMA node.",
        ),
        "placement_vllm_version_assumed": Code(
            "placement",
            "info",
            "vLLM version not told",
            "`--numa-bind` was planned, which needs vLLM 0.20 or later.",
            "Tell the version: `--vllm-version`, `vllm_version` of the filter.",
        ),
        "placement_numactl_refused": Code(
            "placement",
            "error",
            "A numactl of your own would starve GPUs",
            "A binding to one node around an instance on two makes every worker of the other socket reach its GPU and "
            "its memory across the socket link, and all workers share half the CPUs.",
            "Remove `numactl` from the instance and let placement bind each worker (`numa: auto`).",
        ),
        "placement_membind_not_used": Code(
            "placement",
            "warning",
            "Strict memory binding not used",
            "`--membind` has no fallback: when the node is full the kernel kills the server. It is used only where "
            "the node's memory is known to hold the instance.",
            "Set `host_memory_gib` of the instance to what it needs on the host; free memory of the node; or drop "
            "`strict_membind`.",
        ),
    }
    instance = {
        "gpu_memory_utilization_high": Code(
            "instance",
            "warning",
            "gpu_memory_utilization above 0.92",
            "vLLM does not count graphs, RCCL buffers and fragmentation, which take several GiB on ROCm: the server "
            "starts and then runs out of memory under load.",
            "Set gpu_memory_utilization to 0.90 to 0.92.",
        ),
    }
    binding = {
        "unit_absent": Code(
            "binding",
            "error",
            "The unit does not exist",
            "systemd does not know it.",
            "Run role `vllm_serve`.",
        ),
        "unit_state_unknown": Code(
            "binding",
            "unknown",
            "State of the unit not known",
            "systemctl was absent or said nothing of the unit.",
            "Check that systemd runs on the host, and name the unit in `units` of `node_probe`.",
        ),
        "unit_not_active": Code(
            "binding",
            "error",
            "The unit does not run",
            "It is failed, stopped or still starting.",
            "`journalctl -u <unit> -e`.",
        ),
        "unit_not_enabled": Code(
            "binding",
            "error",
            "The unit does not start at boot",
            "After a reboot the instance would be missing.",
            "`systemctl enable <unit>`; role `vllm_serve` does.",
        ),
        "unit_needs_reload": Code(
            "binding",
            "warning",
            "The unit's file changed since it was loaded",
            "What runs may not be what the file says.",
            "`systemctl daemon-reload` and restart the unit.",
        ),
        "unit_processes_unknown": Code(
            "binding",
            "unknown",
            "No process of the unit could be read",
            "Nothing can be said about its binding.",
            "Collect as root, in the host's PID namespace.",
        ),
        "unit_workers_missing": Code(
            "binding",
            "unknown",
            "Fewer workers than GPUs",
            "The binding of a worker that cannot be seen is not known.",
            "Wait until the server is ready; look at the journal for a worker that died.",
        ),
        "binding_cpus": Code(
            "binding",
            "error",
            "A process may run on CPUs outside the plan",
            "Its memory and its GPU are then across the socket link.",
            "Render and restart the unit with role `vllm_serve`; look for CPUAffinity= and AllowedCPUs= in drop-ins.",
        ),
        "binding_memory": Code(
            "binding",
            "error",
            "A process has another memory policy than planned",
            "Its allocations come from another node, or are bound strictly where they must not be.",
            "Render and restart the unit with role `vllm_serve`; look for NUMAPolicy= in drop-ins and for a numactl "
            "in a wrapper.",
        ),
        "binding_memory_strict": Code(
            "binding",
            "warning",
            "A worker bound its memory strictly to the planned node",
            "vLLM's CPU backend does so by itself. The node is the right one, but when it is full the kernel kills the "
            "worker, where the plan would have let it use another node.",
            "None needed on the CPU backend; elsewhere look for `numa-bind` in `extra_args` and for NUMAPolicy=.",
        ),
        "binding_unknown": Code(
            "binding",
            "unknown",
            "CPUs or memory policy of a process not known",
            "The process could not be read.",
            "Collect as root; check that /proc is not mounted with hidepid.",
        ),
        "binding_devices": Code(
            "binding",
            "error",
            "A process sees other GPUs than planned",
            "HIP_VISIBLE_DEVICES in its environment is not the plan's, so two instances may share a GPU.",
            "Render and restart the unit with role `vllm_serve`; look for Environment= in drop-ins.",
        ),
        "binding_rocr": Code(
            "binding",
            "error",
            "ROCR_VISIBLE_DEVICES is set for a process",
            "HIP numbers then count within that selection, and vLLM asks the wrong GPUs for NUMA node and memory.",
            "Remove it from the unit's environment and from systemd's DefaultEnvironment.",
        ),
        "binding_override": Code(
            "binding",
            "error",
            "HSA_OVERRIDE_GFX_VERSION is set for a process",
            "The runtime then reports another gfx target than the GPU has.",
            "Remove it from the unit's environment and from systemd's DefaultEnvironment.",
        ),
        "binding_environment_unreadable": Code(
            "binding",
            "info",
            "A worker's environment cannot be read",
            "The process wrote its title over its environment. The main process, from which it inherits, was read.",
            "None needed.",
        ),
        "binding_environment_unknown": Code(
            "binding",
            "unknown",
            "The main process's environment cannot be read",
            "Which GPUs the unit may use is not proven.",
            "Collect as root.",
        ),
        "binding_user": Code(
            "binding",
            "error",
            "A process runs as another user than planned",
            "Rights on device nodes and files are those of that user.",
            "Set User= of the unit; role `vllm_serve` does.",
        ),
    }
    device_code = {
        "codeobjects_missing": Code(
            "device_code",
            "error",
            "A file holds code for other GPUs only",
            "It would install and fail at the first kernel with `invalid device function`.",
            "Build it with PYTORCH_ROCM_ARCH and GPU_ARCHS of the GPU, or install a build for it; `--allow-missing` "
            "excuses files that are known not to be used.",
        ),
        "codeobjects_none": Code(
            "device_code",
            "error",
            "No AMD device code at all",
            "A CUDA or CPU build, or a package without its device extra. ROCm wheels of vLLM exist for Python 3.12 "
            "only, and on another Python pip takes the CUDA wheel without a word.",
            "Install the ROCm build of the package and, where it has one, its device extra.",
        ),
        "codeobjects_kpack_absent": Code(
            "device_code",
            "error",
            "The archive with a file's device code is not there",
            "ROCm 10 keeps device code in `.kpack` archives, which come with the device extra of a package.",
            "Install the device extra, for example `torch[device-gfx942]`.",
        ),
        "codeobjects_damaged": Code(
            "device_code",
            "unknown",
            "Device code that cannot be told",
            "A bundle, code object or archive is truncated, damaged, or of a format that is not known.",
            "Copy or build the file again and compare its checksum with the one of its package.",
        ),
        "codeobjects_unreadable": Code(
            "device_code",
            "unknown",
            "A file cannot be read",
            "Rights, a damaged wheel, or a broken disk.",
            "Run as a user who may read it, or copy the file again.",
        ),
    }
    arguments = {
        "serve_args_unknown": Code(
            "arguments",
            "error",
            "No such option",
            "The release has no option of that name, and no other release that is known has one.",
            "Write the option that the message names, or leave it out.",
        ),
        "serve_args_removed": Code(
            "arguments",
            "error",
            "The option is gone",
            "The release stops at the first option it does not know.",
            "The message says what takes its place.",
        ),
        "serve_args_renamed": Code(
            "arguments",
            "error",
            "The option has another name",
            "The same value, under a new name.",
            "Use the new name.",
        ),
        "serve_args_not_yet": Code(
            "arguments",
            "error",
            "The option came later",
            "The release is older than the option.",
            "Leave it out, or run a newer vLLM.",
        ),
        "serve_args_never_valid": Code(
            "arguments",
            "error",
            "Never an option, or never a value of it",
            "It is often written, and no release took it.",
            "The message says what was probably meant.",
        ),
        "serve_args_bad_value": Code(
            "arguments",
            "error",
            "The value is of the wrong kind",
            "The parser of the release refuses it.",
            "Correct the value.",
        ),
        "serve_args_missing_value": Code(
            "arguments",
            "error",
            "The option has no value",
            "What follows it is another option, or nothing.",
            "Give it a value.",
        ),
        "serve_args_positional": Code(
            "arguments",
            "error",
            "A word that belongs to no option",
            "Often the value of a switch that takes none.",
            "Quote values that hold spaces, and check the option before it.",
        ),
        "serve_args_ineffective": Code(
            "arguments",
            "error",
            "The option has no effect where it is",
            "vLLM reads it and does something else than was meant: `numa-bind` in the file, `false` in the file before "
            "0.28, `--config=FILE`.",
            "Put it where the message says.",
        ),
        "serve_args_rocm": Code(
            "arguments",
            "error",
            "Wrong on ROCm",
            "The option, value or variable does harm or is not supported on AMD GPUs.",
            "The message says what to use instead.",
        ),
        "serve_args_deprecated": Code(
            "arguments",
            "warning",
            "About to go",
            "The release still takes it.",
            "Use what the message names, before an upgrade needs it.",
        ),
        "serve_args_abbreviated": Code(
            "arguments",
            "warning",
            "An abbreviation",
            "The parser takes any beginning that only one option has, until another option begins like it.",
            "Write the whole name.",
        ),
        "serve_args_fragile": Code(
            "arguments",
            "warning",
            "Taken by this release, not by others",
            "It would stop an older or newer one.",
            "Leave it out.",
        ),
        "serve_args_duplicate": Code(
            "arguments",
            "warning",
            "Given more than once",
            "The last one counts.",
            "Give it once.",
        ),
        "serve_args_entry_point": Code(
            "arguments",
            "warning",
            "Another way to start the server",
            "`python -m vllm.entrypoints...` is deprecated; where the module is gone it is an error.",
            "Start it with `vllm serve MODEL`.",
        ),
        "serve_args_environment": Code(
            "arguments",
            "warning",
            "A variable that vLLM does not know",
            "vLLM ignores it with a warning, or refuses to start with `--fail-on-environ-validation`.",
            "Unset it, or use the option that took its place.",
        ),
        "serve_args_config": Code(
            "arguments",
            "unknown",
            "The configuration file was not checked",
            "It is not there, or no YAML map.",
            "Run the check where the file is.",
        ),
        "serve_args_release_nearest": Code(
            "arguments",
            "info",
            "Checked against a neighbouring release",
            "The options of this very release were not extracted.",
            "None needed, if nothing about the options changed in between.",
        ),
        "serve_args_release_unknown": Code(
            "arguments",
            "unknown",
            "The release is not known",
            "Its options were never extracted, so nothing was checked.",
            "Name a known release, or add it with `tools/extract_serve_options.py`.",
        ),
    }
    memory = {
        "fit_weights": Code(
            "memory",
            "error",
            "The weights do not fit",
            "They alone need more than vLLM may use of a GPU.",
            "Use the set-up or the checkpoint that the message names.",
        ),
        "fit_kv_cache": Code(
            "memory",
            "error",
            "No room for one sequence",
            "What weights and reserves leave holds no sequence of full length, so vLLM refuses to start.",
            "Lower max-model-len, use an fp8 cache, or a larger TP.",
        ),
        "fit_kv_pool": Code(
            "memory",
            "error",
            "The given cache does not fit",
            "Weights, reserves and `--kv-cache-memory-bytes` together exceed the GPU.",
            "Lower kv-cache-memory-bytes, or leave it out.",
        ),
        "fit_heads": Code(
            "memory",
            "error",
            "Attention heads cannot be cut",
            "Each GPU of a tensor group takes the same number of heads.",
            "Use a TP that divides the heads.",
        ),
        "fit_kv_heads": Code(
            "memory",
            "error",
            "KV heads can neither be cut nor repeated evenly",
            "Each GPU needs the same number of KV heads.",
            "Use a TP that divides them, or a multiple of them.",
        ),
        "fit_intermediate": Code(
            "memory",
            "error",
            "A feed-forward width cannot be cut",
            "Each GPU takes the same part.",
            "Use a TP that divides the width; `--enable-expert-parallel` for experts.",
        ),
        "fit_quant_group": Code(
            "memory",
            "error",
            "The cut goes through a block of quantised weights",
            "The weights of a block share a scale, so a block has to stay whole. Where the kernels pad it is for "
            "information.",
            "Use a smaller TP, or `--enable-expert-parallel` for experts.",
        ),
        "fit_layers": Code(
            "memory",
            "error",
            "More pipeline stages than layers",
            "Each stage needs a layer.",
            "Use a smaller PP.",
        ),
        "fit_gpus": Code(
            "memory",
            "error",
            "Not enough GPUs",
            "An instance takes TP x PP GPUs.",
            "Lower them, or give the instance more GPUs.",
        ),
        "fit_model_len": Code(
            "memory",
            "error",
            "Longer than the model allows",
            "vLLM refuses to start.",
            "Lower max-model-len.",
        ),
        "fit_argument": Code(
            "memory",
            "error",
            "A number that makes no sense",
            "No set-up can have it.",
            "Correct the argument.",
        ),
        "fit_kv_repeated": Code(
            "memory",
            "warning",
            "The cache is kept more than once",
            "With more GPUs than KV heads, or with MLA, GPUs hold the same cache, so more of them hold no more.",
            "Fewer GPUs an instance and more instances, or data parallel attention.",
        ),
        "fit_few_sequences": Code(
            "memory",
            "warning",
            "Not all sequences have room at full length",
            "When they all get long, some are put off and computed again.",
            "Lower max-num-seqs or max-model-len.",
        ),
        "fit_weights_differ": Code(
            "memory",
            "warning",
            "Checkpoint and configuration differ in size",
            "They may not belong together.",
            "See whether config.json belongs to these files.",
        ),
        "fit_config": Code(
            "memory",
            "unknown",
            "No model configuration",
            "The document is not a JSON object.",
            "Give the config.json that lies next to the weights.",
        ),
        "fit_architecture": Code(
            "memory",
            "unknown",
            "The architecture is not known",
            "Its shapes are not in the table, so nothing was counted.",
            "Judge its memory by a trial start, with `--max-model-len auto`.",
        ),
        "fit_missing_key": Code(
            "memory",
            "unknown",
            "The configuration lacks a key",
            "Without it the size cannot be told.",
            "Take the config.json of the model as published.",
        ),
        "fit_bad_value": Code(
            "memory",
            "unknown",
            "A value of the configuration is not usable",
            "It is no number, or one that no model has.",
            "Correct config.json.",
        ),
        "fit_quantisation": Code(
            "memory",
            "unknown",
            "The quantisation is not known",
            "What its weights take cannot be told from config.json.",
            "Put the safetensors files next to config.json: their sizes count then.",
        ),
        "fit_kv_dtype": Code(
            "memory",
            "unknown",
            "The type of the cache is not known",
            "Its size cannot be told.",
            "Use auto or fp8, or judge it by a trial start.",
        ),
    }
    return {
        **collection,
        **topology,
        **host,
        **fabric,
        **placement,
        **instance,
        **binding,
        **device_code,
        **arguments,
        **memory,
    }


#: Code -> what it means.
CODES: Mapping[str, Code] = _codes()


def finding(
    code: str, subject: str, message: str, *, severity: Severity | None = None, remedy: str | None = None
) -> Finding:
    """Make a finding of a registered code; severity and remedy are the registry's unless given.

    Raises:
        KeyError: the code is not in the registry, which is a mistake of the caller's programmer.
    """
    entry = CODES[code]
    return Finding(
        code=code,
        severity=severity or entry.severity,
        subject=subject,
        message=message,
        remedy=remedy or entry.remedy,
    )
