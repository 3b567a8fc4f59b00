"""Say as JSON what an installed release is. Run by its own Python, standard library only, and it changes nothing."""

import importlib.metadata
import json
import os
import platform
import stat
import subprocess
import sys
import tempfile

TAIL = 4000


def exposed(root):
    """Return files and folders that somebody other than root could change, at most twenty."""
    found = []
    for folder, dirs, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in [*dirs, *names])]:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                continue
            if info.st_uid != 0 or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                found.append(path)
                if len(found) == 20:
                    return found
    return found


def start_help(program):
    """Run `vllm serve --help` in an empty home and return how it ended."""
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HOME": home, "XDG_CACHE_HOME": home, "VLLM_CACHE_ROOT": home, "VLLM_CONFIG_ROOT": home}
        env.update(VLLM_NO_USAGE_STATS="1", PYTHONDONTWRITEBYTECODE="1", VLLM_LOGGING_LEVEL="ERROR")
        try:
            run = subprocess.run(
                [program, "serve", "--help"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=600,
                env=env,
                cwd=home,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            return {"rc": None, "tail": str(exc)}
    return {"rc": run.returncode, "tail": run.stdout[-TAIL:].decode("utf-8", "replace") if run.returncode else ""}


def main():
    """Print the one document."""
    said = dict.fromkeys(("vllm", "torch", "hip", "cuda", "error"))
    try:
        said["vllm"] = importlib.metadata.version("vllm")
        import torch

        said.update(torch=str(torch.__version__), hip=torch.version.hip, cuda=torch.version.cuda)
    except Exception as exc:
        said["error"] = f"{type(exc).__name__}: {exc}"
    said["python"] = platform.python_version()
    said["libc"] = " ".join(platform.libc_ver())
    said["help"] = start_help(os.path.join(sys.prefix, "bin", "vllm"))
    said["exposed"] = exposed(sys.prefix)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
