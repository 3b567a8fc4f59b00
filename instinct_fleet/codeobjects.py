"""Which gfx targets a file holds device code for.

HIP puts device code into host files in several ways, all read here from a buffer (bytes or mmap) without running or
loading anything:

- *offload bundles* (``__CLANG_OFFLOAD_BUNDLE__``), one a translation unit, in the section ``.hip_fatbin``;
- the same *compressed* (``CCOB``, header versions 1 to 3, zlib or zstd), the default of newer compilers;
- *bare code objects*, ELF files for the machine AMDGPU whose ``e_flags`` name the processor (``.hsaco``, ``.co``, or
  embedded in the data of a host file);
- *kpack archives* (ROCm 10): the host file has only a reference, ``.rocm_kpack_ref``, to a ``.kpack`` file that comes
  with the device extra of the package (``torch[device-gfx942]``).

Formats: LLVM's ClangOffloadBundler and AMDGPUUsage documents, and TheRock's RFC0008 for kpack. A kernel kept only as
source, LLVM bitcode or SPIR-V, or compressed by the library that carries it (AOTriton's .aks2), is not seen.

Everything here is pure; :mod:`instinct_fleet.cli.codeobjects` walks directories and opens archives. Nothing raises for
what a buffer holds: damage is a finding.
"""

from __future__ import annotations

import fnmatch
import io
import mmap
import posixpath
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import zstandard
from elftools.elf.elffile import ELFFile

from instinct_fleet.model import Finding, sort_findings

Buffer = bytes | mmap.mmap

BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"
COMPRESSED = b"CCOB"
ELF = b"\x7fELF"
ARCHIVE = b"!<arch>\n"
THIN_ARCHIVE = b"!<thin>\n"
KPACK = b"KPAK"
#: First bytes of every file that may hold device code; a file with others is not looked into.
MAGICS = (BUNDLE[:8], COMPRESSED, ELF, ARCHIVE, THIN_ARCHIVE, KPACK)

#: ELF64, little endian, version 1, OSABI 64 (AMDGPU_HSA): how a code object for HIP begins.
CODE_OBJECT = ELF + b"\x02\x01\x01\x40"
EM_AMDGPU = 224

#: EF_AMDGPU_MACH, the low byte of e_flags (LLVM, "AMDGPU ELF header e_flags"), gfx9 and later. gfx940 and gfx941 were
#: pre-production MI300 and are gone from LLVM; old files still carry them.
PROCESSORS: Mapping[int, str] = {
    **{0x2C: "gfx900", 0x2D: "gfx902", 0x2E: "gfx904", 0x2F: "gfx906", 0x30: "gfx908", 0x31: "gfx909"},
    **{0x32: "gfx90c", 0x3F: "gfx90a", 0x40: "gfx940", 0x4B: "gfx941", 0x4C: "gfx942", 0x4F: "gfx950"},
    **{0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012", 0x42: "gfx1013"},
    **{0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3E: "gfx1034", 0x3D: "gfx1035"},
    **{0x45: "gfx1036", 0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102", 0x44: "gfx1103"},
    **{0x43: "gfx1150", 0x4A: "gfx1151", 0x55: "gfx1152", 0x58: "gfx1153", 0x57: "gfx1154"},
    **{0x5D: "gfx1170", 0x5E: "gfx1171", 0x5C: "gfx1172", 0x48: "gfx1200", 0x4E: "gfx1201"},
    **{0x49: "gfx1250", 0x5A: "gfx1251", 0x50: "gfx1310"},
    **{0x51: "gfx9-generic", 0x5F: "gfx9-4-generic", 0x52: "gfx10-1-generic", 0x53: "gfx10-3-generic"},
    **{0x54: "gfx11-generic", 0x62: "gfx11-7-generic", 0x59: "gfx12-generic", 0x5B: "gfx12-5-generic"},
    0x63: "gfx13-generic",
}

#: Target features as the driver reports them by default, e.g. ``gfx942:sramecc+:xnack-`` on an MI300X. Code built
#: for the other setting of a feature is not loaded there.
DEVICE_FEATURES: Mapping[str, frozenset[str]] = {
    gfx: frozenset({"sramecc+", "xnack-"}) for gfx in ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950")
}

#: Generic processors of Instinct parts and what runs them (LLVM AMDGPUUsage, "AMDGPU generic processors").
GENERIC: Mapping[str, frozenset[str]] = {"gfx9-4-generic": frozenset({"gfx940", "gfx941", "gfx942", "gfx950"})}

#: More than a bundle of every processor with every feature has; a higher count means damage.
_MOST_ENTRIES = 1024
_LONGEST_TRIPLE = 256
#: As much of a compressed bundle as is unpacked to read its table of contents.
_TABLE_BYTES = 256 * 1024
#: Bundles of the next translation unit start on a page boundary: the gap that is searched before the whole rest is.
_GAP = 64 * 1024
_GFX = re.compile(r"gfx[0-9a-z]+(?:-[0-9a-z]+)*")
#: Sections of a host ELF that hold device code, and those that may have code objects embedded as data.
_DEVICE_SECTIONS = (".hip_fatbin", ".llvm.offloading")
_DATA_SECTIONS = (".rodata", ".data", ".lrodata", ".ldata")
_CUDA_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


@dataclass(frozen=True)
class Reference:
    """What a host file says of its kpack archive: the name its kernels have there, and where the archive may lie.

    A search path is relative to the directory of the host file and may hold ``@GFXARCH@`` for the processor.
    """

    kernel: str
    search_paths: tuple[str, ...]


@dataclass(frozen=True)
class FileReport:
    """The device code of one file (or member of a wheel or static library).

    ``targets`` are pairs of target and number of code objects, sorted. ``kinds`` are some of ``bundle``,
    ``compressed``, ``bare``, ``embedded``, ``kpack``. ``kernels`` (kpack archives only) maps the name a host file has
    in the archive to its targets. ``cuda`` is True for a file with a CUDA fat binary.
    """

    path: str
    targets: tuple[tuple[str, int], ...] = ()
    kinds: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cuda: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def holds_device_code(self) -> bool:
        """True when the file has AMD device code of its own, or refers to a kpack archive for it."""
        return bool(self.targets or self.references)


@dataclass
class _Collector:
    """What has been found in one file so far."""

    path: str
    targets: Counter[str] = field(default_factory=Counter)
    kinds: set[str] = field(default_factory=set)
    references: list[Reference] = field(default_factory=list)
    kernels: dict[str, set[str]] = field(default_factory=dict)
    cuda: bool = False
    findings: list[Finding] = field(default_factory=list)

    def add(self, target: str, kind: str) -> None:
        self.targets[target] += 1
        self.kinds.add(kind)

    def damaged(self, what: str) -> None:
        self.findings.append(
            Finding(
                code="codeobjects_damaged",
                severity="unknown",
                subject=self.path,
                message=f"{what}; its device code cannot be told",
                remedy="copy or build the file again and compare its checksum with the one of its package",
            )
        )

    def report(self) -> FileReport:
        return FileReport(
            path=self.path,
            targets=tuple(sorted(self.targets.items())),
            kinds=tuple(sorted(self.kinds)),
            references=tuple(self.references),
            kernels={name: tuple(sorted(targets)) for name, targets in sorted(self.kernels.items())},
            cuda=self.cuda,
            findings=sort_findings(self.findings),
        )


def read(buffer: Buffer, *, name: str) -> tuple[FileReport, ...]:
    """Read one file's content.

    Args:
        buffer: the content, bytes or a mapping of the file.
        name: what the file is called in the result; members of a static library become ``name(member)``.

    Returns:
        A report for each thing that has device code or that could not be read; nothing for an ordinary file.
    """
    reports: list[FileReport] = []
    head = bytes(buffer[:8])
    if head in (ARCHIVE, THIN_ARCHIVE):
        whole = _Collector(name)
        for member, start, end in _archive_members(buffer, whole):
            inside = _Collector(f"{name}({member})")
            _read_plain(buffer, start, end, inside)
            reports.append(inside.report())
        reports.append(whole.report())
    else:
        found = _Collector(name)
        _read_plain(buffer, 0, len(buffer), found)
        reports.append(found.report())
    return tuple(r for r in reports if r.holds_device_code or r.cuda or r.findings)


def _read_plain(buffer: Buffer, start: int, end: int, found: _Collector) -> None:
    """Read what is not an archive: an ELF, a bundle, or a kpack archive, at ``start``..``end`` of the buffer."""
    head = bytes(buffer[start : start + 24])
    if head.startswith(ELF):
        _read_elf(buffer, start, end, found)
    elif head.startswith((BUNDLE, COMPRESSED)) or (len(head) < len(BUNDLE) and BUNDLE.startswith(head) and head):
        if not _read_bundles(buffer, start, end, found) and not found.findings:
            found.damaged("begins like an offload bundle, but has no table of contents")
    elif head.startswith(KPACK):
        _read_kpack(buffer, start, end, found)


# --- ELF --------------------------------------------------------------------------------------------------------


def _read_elf(buffer: Buffer, start: int, end: int, found: _Collector) -> None:
    """Read an ELF file: a code object itself, or a host file with device code in its sections."""
    header = bytes(buffer[start : min(start + 64, end)])
    if len(header) < 52:
        found.damaged(f"ELF header is {len(header)} bytes long, expected at least 52")
        return
    if struct.unpack_from("<H", header, 18)[0] == EM_AMDGPU:
        target = _code_object_target(header)
        if target is None:
            found.damaged("AMDGPU code object with a truncated header or an unknown processor in e_flags")
        else:
            found.add(target, "bare")
        return
    try:
        sections = list(_sections(buffer, start, end))
    except Exception as exc:  # pyelftools and construct raise a dozen unrelated types for a damaged file
        if _scan(buffer, start, end, found):
            found.damaged(f"ELF section table is damaged ({type(exc).__name__}); searched the whole file instead")
        else:
            found.damaged(f"ELF section table is damaged ({type(exc).__name__}: {exc}) and no bundle was found")
        return
    if not sections:
        # A file stripped of its section table still runs, so its device code is searched for by magic.
        _scan(buffer, start, end, found)
    device_section = ""
    for name, first, last in sections:
        if name.startswith(_CUDA_SECTIONS):
            found.cuda = True
        elif last > end:
            if name.startswith(_DEVICE_SECTIONS):
                found.damaged(f"section {name} ends at byte {last - start} of a file of {end - start}")
                _scan(buffer, first, end, found)
        elif name == ".rocm_kpack_ref":
            _read_reference(bytes(buffer[first:last]), found)
        elif name.startswith("__CLANG_OFFLOAD_BUNDLE__"):
            # A relocatable object as `clang -c` writes it: a section for each target, named by it. Other vendors'
            # compilers (SYCL) write the like for their own.
            target = _target_of_triple(name)
            if target and last > first:
                found.add(target, "bundle")
        elif name.startswith(_DEVICE_SECTIONS):
            if not _scan(buffer, first, last, found) and last > first and any(buffer[first : min(last, first + 4096)]):
                device_section = name
        elif name.startswith(_DATA_SECTIONS):
            _scan_embedded(buffer, first, last, found)
    if device_section and not found.targets and not found.references:
        found.damaged(f"section {device_section} holds neither an offload bundle nor a code object")


def _sections(buffer: Buffer, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first byte, byte after the last) of each section that takes room in the file."""
    stream: Any = buffer if isinstance(buffer, mmap.mmap) and start == 0 else io.BytesIO(buffer[start:end])
    stream.seek(0)
    for section in ELFFile(stream).iter_sections():
        if section["sh_type"] not in ("SHT_NOBITS", "SHT_NULL"):
            first = start + section["sh_offset"]
            yield section.name, first, first + section["sh_size"]


def _scan(buffer: Buffer, start: int, end: int, found: _Collector) -> bool:
    """Look for bundles and, when there are none, for code objects. Return whether anything was found."""
    return _read_bundles(buffer, start, end, found) or _scan_embedded(buffer, start, end, found)


def _scan_embedded(buffer: Buffer, start: int, end: int, found: _Collector) -> bool:
    """Find code objects that a library carries as plain data (AITER and Composable Kernel do)."""
    seen = False
    position = buffer.find(CODE_OBJECT, start, end)
    while position != -1:
        target = _code_object_target(bytes(buffer[position : min(position + 64, end)]))
        if target is not None:
            found.add(target, "embedded")
            seen = True
        position = buffer.find(CODE_OBJECT, position + len(CODE_OBJECT), end)
    return seen


def _code_object_target(header: bytes) -> str | None:
    """Return the target of an AMDGPU ELF header, e.g. ``gfx90a:sramecc+:xnack-``; None when it has none.

    Code object version 3 (ABI version 1) has one bit a feature; from version 4 on it is two: any, off, on.
    """
    if len(header) < 64 or struct.unpack_from("<H", header, 18)[0] != EM_AMDGPU:
        return None
    flags = struct.unpack_from("<I", header, 48)[0]
    processor = PROCESSORS.get(flags & 0xFF)
    if processor is None:
        return None
    features: list[str] = []
    if header[8] <= 1:
        features += ["sramecc+"] if flags & 0x200 else []
        features += ["xnack+"] if flags & 0x100 else []
    else:
        features += {0x800: ["sramecc-"], 0xC00: ["sramecc+"]}.get(flags & 0xC00, [])
        features += {0x200: ["xnack-"], 0x300: ["xnack+"]}.get(flags & 0x300, [])
    return ":".join([processor, *features])


# --- offload bundles --------------------------------------------------------------------------------------------


def _read_bundles(buffer: Buffer, start: int, end: int, found: _Collector) -> bool:
    """Read the bundles between two bytes, plain and compressed in any order. Return whether there were any."""
    seen = False
    position = _next_bundle(buffer, start, end)
    while position != -1:
        if buffer[position : position + 4] == COMPRESSED:
            length = _read_compressed(buffer, position, end, found)
        else:
            length = _read_bundle(buffer, position, end, found)
        seen = seen or length is not None
        position = _next_bundle(buffer, position + (length or 4), end)
    return seen


def _next_bundle(buffer: Buffer, start: int, end: int) -> int:
    """Return where the next bundle starts, or -1. The near surroundings are searched before the whole rest."""
    for last in (min(start + _GAP, end), end):
        plain = buffer.find(BUNDLE, start, last)
        packed = buffer.find(COMPRESSED, start, last if plain == -1 else plain)
        while packed != -1 and not _is_compressed_header(buffer[packed : packed + 8]):
            packed = buffer.find(COMPRESSED, packed + 4, last if plain == -1 else plain)
        if packed != -1 or plain != -1:
            return packed if packed != -1 else plain
    return -1


def _is_compressed_header(head: bytes) -> bool:
    """Four letters can be a coincidence: a header also has a version and a method that exist."""
    if len(head) < 8:
        return False
    version, method = struct.unpack_from("<HH", head, 4)
    return bool(1 <= version <= 15 and method <= 1)


def _read_bundle(buffer: Buffer, position: int, end: int, found: _Collector) -> int | None:
    """Read one plain bundle; return its length in bytes, or None when it is damaged."""
    table = bytes(buffer[position : min(position + _TABLE_BYTES, end)])
    entries = _entries(table, found)
    if entries is None:
        return None
    length = len(BUNDLE)
    for target, offset, size in entries:
        if position + offset + size > end:
            found.damaged(
                f"offload bundle is truncated: the code for {target} ends {position + offset + size - end} bytes "
                "after the end of the file or section"
            )
            continue
        length = max(length, offset + size)
        if target and size:
            found.add(target, "bundle")
            real = _code_object_target(bytes(buffer[position + offset : position + offset + 64]))
            if real is not None and real.split(":")[0] != target.split(":")[0]:
                found.damaged(f"offload bundle says {target}, but the code object in it is for {real}")
    return length


def _read_compressed(buffer: Buffer, position: int, end: int, found: _Collector) -> int | None:
    """Read the table of contents of one compressed bundle; return its length in bytes, or None when damaged.

    Header: magic, version (2 bytes), method (2: 0 zlib, 1 zstd), then version 1: unpacked size (4), hash (8);
    version 2: total size (4), unpacked size (4), hash (8); version 3: the same with sizes of 8 bytes.
    """
    version, method = struct.unpack_from("<HH", bytes(buffer[position : position + 8]), 4)
    sizes = {1: "<I", 2: "<II", 3: "<QQ"}.get(version)
    if sizes is None:
        found.damaged(f"compressed offload bundle has header version {version}; versions 1 to 3 are known")
        return None
    body = position + 8 + struct.calcsize(sizes) + 8
    if body > end:
        found.damaged("compressed offload bundle is truncated within its header")
        return None
    fields = struct.unpack_from(sizes, bytes(buffer[position + 8 : body]))
    total = fields[0] if version > 1 else None
    if total is not None and not body - position <= total <= end - position:
        found.damaged(
            f"compressed offload bundle is truncated: it says {total} bytes, the file or section has {end - position}"
        )
        total = None
    last = position + total if total is not None else end
    try:
        with memoryview(buffer) as view, view[body:last] as packed:
            if version == 1:
                total = body - position + _packed_length(packed, method)
            table = _unpack_start(packed, method)
    except (zstandard.ZstdError, zlib.error, EOFError, MemoryError) as exc:
        found.damaged(f"compressed offload bundle cannot be unpacked: {exc}")
        return total
    entries = _entries(table, found)
    if entries is None:
        return total
    for target, offset, size in entries:
        if offset + size > fields[-1]:
            found.damaged(f"compressed offload bundle is damaged: the code for {target} lies outside of it")
        elif target and size:
            found.add(target, "compressed")
    return total or body - position


def _unpack_start(packed: memoryview, method: int) -> bytes:
    """Unpack the first ``_TABLE_BYTES`` bytes, and no more: the size of the rest is whatever a file says."""
    if method == 1:
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            return bytes(reader.read(_TABLE_BYTES))
    unpacker = zlib.decompressobj()
    return unpacker.decompress(packed, _TABLE_BYTES)


def _packed_length(packed: memoryview, method: int) -> int:
    """Return how many bytes of ``packed`` belong to the bundle; a header of version 1 does not say.

    It has to be known: the packed data may well hold the words that a plain bundle begins with.

    Raises:
        EOFError, zlib.error, zstandard.ZstdError: the data is truncated or damaged.
    """
    if method == 1:
        # The blocks of a zstd frame say their lengths (RFC 8878, 3.1.1.2), so nothing needs to be unpacked.
        start = bytes(packed[:32])
        position, last = zstandard.frame_header_size(start), 0
        while not last:
            if position + 3 > len(packed):
                raise EOFError("truncated zstd frame")
            header = int.from_bytes(packed[position : position + 3], "little")
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            position += 3 + (1 if kind == 1 else size)
        position += 4 if zstandard.get_frame_parameters(start).has_checksum else 0
    else:
        unpacker, position = zlib.decompressobj(), 0
        while not unpacker.eof:
            chunk = unpacker.unconsumed_tail or bytes(packed[position : position + _TABLE_BYTES])
            if not chunk:
                raise EOFError("truncated zlib stream")
            position += 0 if unpacker.unconsumed_tail else len(chunk)
            unpacker.decompress(chunk, _TABLE_BYTES * 16)
        position -= len(unpacker.unused_data)
    if position > len(packed):
        raise EOFError(f"truncated: {position} bytes expected, {len(packed)} there")
    return position


def _entries(table: bytes, found: _Collector) -> list[tuple[str, int, int]] | None:
    """Read a bundle's table of contents as (target, offset, size); the target is empty for host code.

    Table: magic, number of entries (8 bytes), then for each: offset, size and length of the triple (8 bytes each) and
    the triple, such as ``hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-``. None, and a finding, when it is damaged.
    """
    start = len(BUNDLE) + 8
    if not table.startswith(BUNDLE) or len(table) < start:
        found.damaged("offload bundle is truncated before its table of contents")
        return None
    (count,) = struct.unpack_from("<Q", table, len(BUNDLE))
    if count > _MOST_ENTRIES:
        found.damaged(f"offload bundle says it has {count} entries; at most {_MOST_ENTRIES} are believed")
        return None
    entries: list[tuple[str, int, int]] = []
    for _ in range(count):
        if start + 24 > len(table):
            found.damaged(f"offload bundle is truncated in entry {len(entries) + 1} of {count}")
            return None
        offset, size, length = struct.unpack_from("<QQQ", table, start)
        triple = table[start + 24 : start + 24 + length] if length <= _LONGEST_TRIPLE else b""
        if length > _LONGEST_TRIPLE or len(triple) < length:
            found.damaged(f"offload bundle has a name of {length} bytes in entry {len(entries) + 1} of {count}")
            return None
        start += 24 + length
        entries.append((_target_of_triple(triple.decode("utf-8", "replace")), offset, size))
    return entries


def _target_of_triple(triple: str) -> str:
    """Return the target of an entry's name: ``gfx942:xnack-``, ``amdgcnspirv`` for SPIR-V, empty for host code."""
    if "amdgcnspirv" in triple:
        return "amdgcnspirv"
    match = _GFX.search(triple) if "amdgcn" in triple else None
    return _target_of(triple, match) if match else ""


def _target_of(text: str, match: re.Match[str]) -> str:
    """Return the processor that ``match`` found and the features that follow it, in alphabetical order."""
    features = re.match(r"(?::[a-z]+[+-])*", text[match.end() :])
    return ":".join([match.group(), *sorted(filter(None, features.group().split(":") if features else []))])


# --- kpack ------------------------------------------------------------------------------------------------------


def _read_kpack(buffer: Buffer, start: int, end: int, found: _Collector) -> None:
    """Read the table of contents of a kpack archive: magic, version (4 bytes), where the table starts (8 bytes)."""
    header = bytes(buffer[start : start + 16])
    offset = struct.unpack_from("<Q", header, 8)[0] if len(header) == 16 else end
    if not 16 <= offset < end - start:
        found.damaged("kpack archive is truncated before its table of contents")
        return
    try:
        document = msgpack.unpackb(bytes(buffer[start + offset : end]), strict_map_key=False)
        table = {str(kernel): [str(gfx) for gfx in per_gfx] for kernel, per_gfx in document["toc"].items()}
    except Exception as exc:  # msgpack raises several unrelated types, and the document may be anything
        found.damaged(f"table of contents of the kpack archive cannot be read ({type(exc).__name__}: {exc})")
        return
    for kernel, targets in table.items():
        for target in targets:
            found.add(target, "kpack")
            found.kernels.setdefault(kernel, set()).add(target)


def _read_reference(content: bytes, found: _Collector) -> None:
    """Read a host file's reference to its kpack archive, a MessagePack map."""
    try:
        document = msgpack.Unpacker(io.BytesIO(content), strict_map_key=False).unpack()
        reference = Reference(
            kernel=str(document["kernel_name"]),
            search_paths=tuple(str(path) for path in document["kpack_search_paths"]),
        )
    except Exception as exc:  # as above
        found.damaged(f"reference to a kpack archive cannot be read ({type(exc).__name__}: {exc})")
        return
    found.references.append(reference)


def kpack_patterns(report: FileReport) -> tuple[str, ...]:
    """Return the paths of the archives a host file may find its code in, ``*`` standing for the processor."""
    folder = posixpath.dirname(report.path)
    return tuple(
        posixpath.normpath(posixpath.join(folder, path.replace("@GFXARCH@", "*")))
        for reference in report.references
        for path in reference.search_paths
    )


# --- static libraries -------------------------------------------------------------------------------------------


def _archive_members(buffer: Buffer, found: _Collector) -> Iterator[tuple[str, int, int]]:
    """Yield (name, first byte, byte after the last) of the members of a static library, GNU or BSD names."""
    if buffer[:8] == THIN_ARCHIVE:
        found.damaged("thin archive: its members are other files")
        return
    position, end, long_names = len(ARCHIVE), len(buffer), b""
    while position + 60 <= end:
        header = bytes(buffer[position : position + 60])
        size = header[48:58].strip()
        if header[58:60] != b"`\n" or not size.isdigit():
            found.damaged(f"static library is damaged at byte {position}: no member header")
            return
        first, last = position + 60, position + 60 + int(size)
        if last > end:
            found.damaged(f"static library is truncated: a member ends at byte {last} of {end}")
            last = end
        label = header[:16].rstrip()
        position = last + (last & 1)
        if label == b"//":
            long_names = bytes(buffer[first:last])
            continue
        if label in (b"/", b"/SYM64/"):
            continue
        if label.startswith(b"#1/") and label[3:].isdigit():
            length = int(label[3:])
            label = bytes(buffer[first : min(first + length, last)]).rstrip(b"\0")
            first = min(first + length, last)
        elif label.startswith(b"/") and label[1:].isdigit():
            label = long_names[int(label[1:]) :].split(b"/\n", 1)[0]
        yield label.rstrip(b"/").decode("utf-8", "replace"), first, last
    if position < end:
        found.damaged(f"static library is truncated within a member header at byte {position}")


# --- judging ----------------------------------------------------------------------------------------------------


def serves(target: str, device: str) -> bool:
    """Return whether code built for ``target`` is loaded on ``device``.

    ``device`` is a processor (then its usual features are meant, see DEVICE_FEATURES) or a full target such as
    ``gfx942:sramecc+:xnack+``. A target without a feature runs with either setting of it.
    """
    processor, *features = target.split(":")
    wanted, *given = device.split(":")
    if processor != wanted and wanted not in GENERIC.get(processor, frozenset()):
        return False
    names = {feature.rstrip("+-") for feature in given}
    has = {f for f in DEVICE_FEATURES.get(wanted, frozenset()) if f.rstrip("+-") not in names} | set(given)
    return all(feature in has for feature in features if feature.rstrip("+-") in {f.rstrip("+-") for f in has})


def judge(
    reports: Sequence[FileReport], *, subject: str, require: str | None = None, allow_missing: Iterable[str] = ()
) -> tuple[Finding, ...]:
    """Return what is wrong with the device code of ``subject``: what is damaged, and what lacks ``require``.

    A file without device code lacks nothing. Bare code objects whose path names a processor (``aiter/hsa/gfx942/``,
    ``..._gfx942.co``) are a set made of one file a processor, and the set is judged as one. ``allow_missing`` are
    shell patterns of paths that may lack it.
    """
    findings = [finding for report in reports for finding in report.findings]
    if require is None:
        return sort_findings(findings)
    allowed = tuple(allow_missing)
    own = [r for r in reports if r.holds_device_code]
    cuda = [r for r in reports if r.cuda]
    if not own:
        seen = f"{len(cuda)} files hold CUDA code, so this is a CUDA build" if cuda else "no file holds device code"
        findings.append(
            Finding(
                code="codeobjects_none",
                severity="error",
                subject=subject,
                message=f"no AMD device code at all; expected {require}: {seen}",
                remedy="install the ROCm build of the package and, where it has one, its device extra",
            )
        )
    sets: dict[str, list[FileReport]] = {}
    for report in own:
        if any(fnmatch.fnmatch(report.path, pattern) for pattern in allowed):
            continue
        group = _set_of(report)
        if group is not None:
            sets.setdefault(group, []).append(report)
        elif report.references:
            findings += _judge_reference(report, reports, require)
        elif not any(serves(target, require) for target, _ in report.targets):
            findings.append(_lacks(report.path, [t for t, _ in report.targets], require))
    for group, members in sets.items():
        targets = sorted({target for member in members for target, _ in member.targets})
        if not any(serves(target, require) for target in targets):
            findings.append(_lacks(f"{group} ({len(members)} code objects)", targets, require))
    return sort_findings(findings)


def _set_of(report: FileReport) -> str | None:
    """Return the name of the set that a one-processor code object belongs to, or None when it stands for itself."""
    if report.kinds != ("bare",):
        return None
    parts = report.path.split("/")
    for i, part in enumerate(parts):
        if _GFX.search(part):
            return "/".join(parts[:i]) + "/" if i else "./"
    return None


def _judge_reference(report: FileReport, reports: Sequence[FileReport], require: str) -> list[Finding]:
    """Judge a host file whose code is in a kpack archive, by the archives that were read."""
    patterns = kpack_patterns(report)
    kernels = {reference.kernel for reference in report.references}
    archives = [r for r in reports if r.kernels and any(fnmatch.fnmatch(r.path, p) for p in patterns)]
    targets = sorted({t for archive in archives for kernel in kernels for t in archive.kernels.get(kernel, ())})
    if any(serves(target, require) for target in targets):
        return []
    if targets:
        return [_lacks(report.path, targets, require)]
    return [
        Finding(
            code="codeobjects_kpack_absent",
            severity="error",
            subject=report.path,
            message=f"its device code is in a kpack archive that is not there: {', '.join(patterns)}",
            remedy=f"install the device extra of its package, for example torch[device-{require.partition(':')[0]}]",
        )
    ]


def _lacks(subject: str, targets: Iterable[str], require: str) -> Finding:
    held = ", ".join(targets)
    return Finding(
        code="codeobjects_missing",
        severity="error",
        subject=subject,
        message=f"holds code for {held}, not for {require}",
        remedy=f"build it with PYTORCH_ROCM_ARCH and GPU_ARCHS={require.partition(':')[0]}, or install a build for it",
    )
