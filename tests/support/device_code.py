"""Made files with device code in them, as compilers lay it out: no real kernels, but real containers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence

import msgpack
import zstandard

BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
HOST = "host-x86_64-unknown-linux-gnu-"


def code_object(mach: int, *, abi: int = 2, features: int = 0, body: int = 64) -> bytes:
    """Return an ELF header for the machine AMDGPU with ``mach`` in the low byte of e_flags, and some zero bytes."""
    ident = b"\x7fELF\x02\x01\x01\x40" + bytes([abi]) + bytes(7)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 0, 0, mach | features, 64, 56, 0, 64, 0, 0) + bytes(body)


def bundle(entries: Mapping[str, bytes]) -> bytes:
    """Return an offload bundle: triple -> content, the contents on page boundaries as clang does it."""
    head = len(BUNDLE_MAGIC) + 8 + sum(24 + len(triple) for triple in entries)
    table, contents, offset = b"", b"", -(-head // 4096) * 4096
    for triple, content in entries.items():
        table += struct.pack("<QQQ", offset + len(contents), len(content), len(triple)) + triple.encode()
        contents += content + bytes(-len(content) % 4096)
    start = BUNDLE_MAGIC + struct.pack("<Q", len(entries)) + table
    return start + bytes(offset - len(start)) + contents


def hip_bundle(*targets: str, mach: int = 0x4C, size: int = 256) -> bytes:
    """Return a bundle with an empty host entry and a code object for each target."""
    return bundle({HOST: b"", **{f"hipv4-amdgcn-amd-amdhsa--{t}": code_object(mach, body=size) for t in targets}})


def compressed(content: bytes, *, version: int = 2, method: str = "zstd") -> bytes:
    """Return ``content`` as a compressed bundle with a header of version 1, 2 or 3."""
    body = zstandard.ZstdCompressor().compress(content) if method == "zstd" else zlib.compress(content)
    sizes = {1: "<I", 2: "<II", 3: "<QQ"}[version]
    total = 8 + struct.calcsize(sizes) + 8 + len(body)
    fields = [len(content)] if version == 1 else [total, len(content)]
    return b"CCOB" + struct.pack("<HH", version, method == "zstd") + struct.pack(sizes, *fields) + bytes(8) + body


def host_elf(sections: Mapping[str, bytes], *, section_table: bool = True) -> bytes:
    """Return an x86-64 shared object with the given sections, page aligned, and nothing else in it."""
    names, table, body = b"\0", [bytes(64)], b""
    for name, content in [*sections.items(), (".shstrtab", b"")]:
        names_at = len(names)
        names += name.encode() + b"\0"
        content = content or names  # noqa: PLW2901 - the string table is the last section
        body += bytes(-(64 + len(body)) % 4096)
        kind = 3 if name == ".shstrtab" else 1
        table.append(struct.pack("<IIQQQQIIQQ", names_at, kind, 2, 0, 64 + len(body), len(content), 0, 0, 4096, 0))
        body += content
    offset, count = (64 + len(body), len(table)) if section_table else (0, 0)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, offset, 0, 64, 56, 0, 64, count, max(count - 1, 0))
    return head + body + (b"".join(table) if section_table else b"")


def static_library(members: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a static library with GNU long names."""
    long_names = b"".join(name.encode() + b"/\n" for name, _ in members)
    out = b"!<arch>\n" + _member("//", long_names)
    position = 0
    for name, content in members:
        out += _member(f"/{position}", content)
        position += len(name) + 2
    return out


def _member(label: str, content: bytes) -> bytes:
    head = f"{label:<16}{0:<12}{0:<6}{0:<6}{0o100644:<8o}{len(content):<10}`\n".encode()
    return head + content + b"\n" * (len(content) % 2)


def kpack(kernels: Mapping[str, Sequence[str]]) -> bytes:
    """Return a kpack archive: name of a host file -> processors it holds code for."""
    blob = bytes(64)
    table = {name: {gfx: {"type": "hsaco", "ordinal": 0} for gfx in targets} for name, targets in kernels.items()}
    toc = msgpack.packb({"format_version": 1, "gfx_arches": [], "toc": table})
    return b"KPAK" + struct.pack("<IQ", 1, 16 + len(blob)) + blob + bytes(toc)


def kpack_reference(kernel: str, *paths: str) -> bytes:
    """Return the content of a host file's ``.rocm_kpack_ref`` section."""
    return bytes(msgpack.packb({"kernel_name": kernel, "kpack_search_paths": list(paths)}))
