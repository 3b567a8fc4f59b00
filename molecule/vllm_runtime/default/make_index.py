"""Make a package index with small stand-ins for vllm and torch, and models: make_index.py WORK WHEELHOUSE.

The vllm of it is the program that two_socket/default serves with (processes, binding and /health, no model), with a
command line that can be asked like vLLM's own. The installer is the real one, from a wheelhouse that is there.
"""

import base64
import hashlib
import json
import shutil
import sys
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPO / "tests"), str(REPO)]

from support.device_code import hip_bundle, host_elf  # noqa: E402

MAIN = """
import argparse, sys
import vllm.entrypoints.cli.serve as serve

def main():
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("command")
    parser.add_argument("--config", required=True)
    parser.add_argument("--numa-bind", action="store_true")
    parser.add_argument("--numa-bind-nodes", nargs="+")
    args = parser.parse_args()
    with open(args.config) as handle:
        names = {line.partition(":")[0] for line in handle}
    if "enable-auto-tool-choice" in names and "tool-call-parser" not in names:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    serve.ServeSubcommand.cmd(args)
"""
SERVE = "class ServeSubcommand:\n    @staticmethod\n    def cmd(args):\n        raise SystemExit('not here')\n"
#: `vllm serve --help` waits while this file is there, so that a test can interrupt an installation at its last step.
HELP = """
if sys.argv[1:] == ["serve", "--help"]:
    import time
    while os.path.exists("/run/slow-help"):
        time.sleep(0.2)
    print("usage: vllm serve")
    sys.exit(0)
"""


def wheel(folder, name, version, files, scripts=None):
    """Write a wheel and return its name."""
    info = f"{name}-{version}.dist-info"
    parts = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    parts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    parts |= {f"{name}-{version}.data/scripts/{script}": text for script, text in (scripts or {}).items()}
    record = ""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in parts.items():
            data = content.encode() if isinstance(content, str) else content
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{member},sha256={digest},{len(data)}\n"
            archive.writestr(zipfile.ZipInfo(member, (2026, 1, 1, 0, 0, 0)), data)
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", (2026, 1, 1, 0, 0, 0)), f"{record}{info}/RECORD,,\n")


def main():
    """Write index and models."""
    work, wheelhouse = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.rmtree(work, ignore_errors=True)
    index = work / "index"
    server = (REPO / "molecule/replay/vllm").read_text().partition("\n")[2]
    server = "#!python\n" + server.replace('if __name__ == "__main__":', HELP + '\nif __name__ == "__main__":')
    for version in ("0.32.0+rocm1", "0.33.0+rocm1"):
        package = {f"vllm/{folder}__init__.py": "" for folder in ("", "entrypoints/", "entrypoints/cli/")}
        package |= {"vllm/entrypoints/cli/main.py": MAIN, "vllm/entrypoints/cli/serve.py": SERVE}
        wheel(index / "vllm", "vllm", version, package, {"vllm": server})
    for version, hip, cuda, section in (
        ("2.0+rocm1", "'10.0'", "None", {".hip_fatbin": hip_bundle("gfx942")}),
        ("2.0+cu1", "None", "'13.0'", {".nv_fatbin": b"\x50\xed\x55\xba" + bytes(60)}),
    ):
        text = f"__version__ = '{version}'\nclass version:\n    hip = {hip}\n    cuda = {cuda}\n"
        # As large as a small library, so that what is missing on a full disk is more than a rounding error.
        library = host_elf(section) + bytes(4 << 20)
        wheel(index / "torch", "torch", version, {"torch/__init__.py": text, "torch/lib/libtorch_gpu.so": library})
    (uv,) = sorted(wheelhouse.glob("*/uv-*.whl"))[:1]
    (index / "uv").mkdir()
    shutil.copy(uv, index / "uv")
    for folder in index.iterdir():
        links = "".join(f'<a href="{p.name.replace("+", "%2B")}">{p.name}</a>\n' for p in folder.glob("*.whl"))
        (folder / "index.html").write_text(f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n")
    llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 512}
    llama |= {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
    llama |= {"intermediate_size": 128, "max_position_embeddings": 2048}
    huge = {**llama, "hidden_size": 16384, "num_attention_heads": 128, "num_key_value_heads": 8}
    huge |= {
        "num_hidden_layers": 126,
        "intermediate_size": 53248,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    }
    for name, config in (("tiny", llama), ("huge", huge)):
        (work / "models" / name).mkdir(parents=True)
        (work / "models" / name / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
