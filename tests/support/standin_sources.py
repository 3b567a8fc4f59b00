"""Small source packages that stand in for the components of vLLM: they compile nothing, and check how they are built.

Each has a build backend of its own that refuses an environment other than the one that a build for gfx942 needs, and
that makes a wheel with a shared object that holds an offload bundle for the architecture it was told.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from support.device_code import hip_bundle, host_elf

BACKEND = '''
"""A build backend that checks its environment. It stands in for setup.py of {name}."""

import base64, hashlib, importlib.util, os, time, zipfile

NAME, VERSION, NEEDS = {name!r}, {version!r}, {needs!r}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    expected = {{"VLLM_TARGET_DEVICE": "rocm", "PYTORCH_ROCM_ARCH": "gfx942", "GPU_ARCHS": "gfx942"}}
    expected.update({environment!r})
    for name, value in expected.items():
        assert os.environ.get(name) == value, f"{{name}} is {{os.environ.get(name)!r}}, expected {{value!r}}"
    assert int(os.environ["MAX_JOBS"]) >= 1, "MAX_JOBS"
    assert "HSA_OVERRIDE_GFX_VERSION" not in os.environ, "HSA_OVERRIDE_GFX_VERSION is set"
    for module in NEEDS:
        assert importlib.util.find_spec(module), f"{{module}} must be installed before {{NAME}} is built"
    assert "pip-build-env" not in os.environ.get("PYTHONPATH", ""), "built in isolation"
    print(f"building {{NAME}}", flush=True)
    # A build takes its time: as long as this file is there.
    while os.path.exists(f"/run/slow-{{NAME}}"):
        time.sleep(0.2)
    if os.path.exists(f"/run/broken-{{NAME}}"):
        raise RuntimeError("None of the detected ROCm architectures: gfx942 is supported.")
    with open("kernels.bin", "rb") as handle:
        library = handle.read()
    module, info = NAME.replace("-", "_"), f"{{NAME.replace('-', '_')}}-{{VERSION}}.dist-info"
    parts = {{f"{{module}}/__init__.py": b"", f"{{module}}/_C.so": library}}
    parts[f"{{info}}/METADATA"] = f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n".encode()
    parts[f"{{info}}/WHEEL"] = b"Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: false\\nTag: py3-none-any\\n"
    record = ""
    file = f"{{module}}-{{VERSION}}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, file), "w") as archive:
        for path, data in parts.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{{path}},sha256={{digest}},{{len(data)}}\\n"
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), data)
        archive.writestr(zipfile.ZipInfo(f"{{info}}/RECORD", (2026, 1, 1, 0, 0, 0)), f"{{record}}{{info}}/RECORD,,\\n")
    return file
'''
PROJECT = '[build-system]\nrequires = ["torch==2.14.0"]\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def write_source(
    folder: Path, name: str, version: str, *, needs: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> Path:
    """Write a source package below ``folder`` and return its path. It needs modules, and variables of its own."""
    source = folder / name
    source.mkdir(parents=True)
    text = BACKEND.format(name=name, version=version, needs=needs, environment=environment or {})
    (source / "backend.py").write_text(text)
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "kernels.bin").write_bytes(host_elf({".hip_fatbin": hip_bundle("gfx942")}))
    return source


def pack(source: Path) -> tuple[Path, str]:
    """Pack a source as a source distribution and return its path and SHA-256."""
    archive = source.parent / f"{source.name}.tar.gz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(source, arcname=f"{source.name}-1")
    archive.write_bytes(buffer.getvalue())
    return archive, hashlib.sha256(buffer.getvalue()).hexdigest()
