"""Build the components of a release in order, as plan.json says. Standard library only; run in a unit of its own.

Each finished component is kept with a fingerprint of its inputs, so that the next run goes on after the last one. The
log is this program's output. result.json is written last, whatever happened.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request


class BuildError(Exception):
    """What failed, in one line."""


def say(text):
    """Write a line of progress; the playbook shows the last one."""
    print("== %s %s" % (time.strftime("%H:%M:%S"), text), flush=True)


def sha256(path):
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write(path, document):
    """Write a JSON document so that it is there whole or not at all."""
    with open(path + ".new", "w") as handle:
        json.dump(document, handle, indent=2, sort_keys=True)
    os.replace(path + ".new", path)


def read(path):
    """Return a JSON document, or None."""
    try:
        with open(path) as handle:
            return json.load(handle)
    except (OSError, ValueError):
        return None


def hide_credentials(text):
    """Return a text whose URLs have no user and password: everybody may read the log."""
    return re.sub(r"(://)[^\s/@'\"]*@", r"\1", text)


def run(what, argv, env, cwd=None):
    """Run a program; its output goes to the log."""
    print("+ %s" % hide_credentials(" ".join(argv)), flush=True)
    code = subprocess.call(argv, stdin=subprocess.DEVNULL, env=env, cwd=cwd)
    if code != 0:
        raise BuildError("%s: `%s` ended with %d" % (what, hide_credentials(" ".join(argv[:6])), code))


def environment(plan, venv):
    """Return the variables of the build."""
    env = {name: value for name, value in os.environ.items() if name not in plan["unset"]}
    env.update(plan["environment"])
    env["VIRTUAL_ENV"] = venv
    env["PATH"] = os.path.join(venv, "bin") + ":" + env.get("PATH", "/usr/bin:/bin")
    env.setdefault("HOME", plan["work"])
    packages = glob.glob(os.path.join(venv, "lib", "python3*", "site-packages"))
    devel = os.path.join(packages[0], "_rocm_sdk_devel") if packages else ""
    if os.path.isdir(devel):
        # ROCm from pip: what the images set, and what the compilers look for (vLLM, docker/Dockerfile.rocm_base).
        core = os.path.join(packages[0], "_rocm_sdk_core")
        env.update(ROCM_PATH=devel, ROCM_HOME=devel, HIP_PATH=devel, HIP_CLANG_PATH=devel + "/lib/llvm/bin")
        env["HIP_DEVICE_LIB_PATH"] = core + "/lib/llvm/amdgcn/bitcode"
        folders = [root + part for root in (devel, core) for part in ("/lib", "/lib/rocm_sysdeps/lib")]
        env["LD_LIBRARY_PATH"] = ":".join(folders)
        env["PATH"] = ":".join([devel + "/bin", devel + "/lib/llvm/bin", core + "/bin", env["PATH"]])
        env["PYTHONPATH"] = core + "/share/amd_smi"
    elif os.path.isdir("/opt/rocm"):
        env.update(ROCM_PATH="/opt/rocm", ROCM_HOME="/opt/rocm")
        env["PATH"] = "/opt/rocm/bin:" + env["PATH"]
    ccache = shutil.which("ccache", path=env["PATH"])
    if ccache:
        for language in ("C", "CXX", "HIP"):
            env["CMAKE_%s_COMPILER_LAUNCHER" % language] = ccache
        env.setdefault("CCACHE_DIR", os.path.join(plan["work"], "ccache"))
    return env


def prepare(plan, venv):
    """Make the environment that components are built in, and fill it with tools and with what is not built."""
    inputs = [plan["python"], plan["tools"], plan["fetched"], plan["constraints"], plan["index"]]
    fingerprint = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    done = os.path.join(plan["work"], "tools.json")
    if (read(done) or {}).get("fingerprint") == fingerprint and os.path.isdir(venv):
        return
    say("making the build environment")
    shutil.rmtree(venv, ignore_errors=True)
    run("build environment", [plan["python"], "-m", "venv", venv], dict(os.environ))
    constraints = os.path.join(plan["work"], "constraints.txt")
    with open(constraints, "w") as handle:
        handle.write("".join(line + "\n" for line in plan["constraints"]))
    env = environment(plan, venv)
    pip = [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "--constraint", constraints, *plan["index"]]
    for what, names in (("tools", plan["tools"]), ("fetched parts", plan["fetched"])):
        if names:
            say("installing %s: %s" % (what, ", ".join(names)))
            run(what, [*pip, *names], env)
    sdk = os.path.join(venv, "bin", "rocm-sdk")
    if os.path.exists(sdk):
        run("ROCm SDK", [sdk, "init"], environment(plan, venv))
    write(done, {"fingerprint": fingerprint})


def fetch(component, place, env):
    """Put a component's source into a folder, and return what provenance says of it."""
    source = os.path.join(place, "source")
    shutil.rmtree(source, ignore_errors=True)
    name = component["name"]
    if component["git"]:
        run(name, ["git", "clone", "--quiet", component["git"], source], env)
        run(name, ["git", "-C", source, "checkout", "--quiet", "--detach", component["commit"]], env)
        if component["submodules"]:
            run(name, ["git", "-C", source, "submodule", "update", "--quiet", "--init", "--recursive"], env)
        commit = subprocess.check_output(["git", "-C", source, "rev-parse", "HEAD"], env=env).decode().strip()
        return source, {"git": component["git"], "asked": component["commit"], "commit": commit}
    if component["url"]:
        archive = os.path.join(place, "source.tar.gz")
        if not os.path.exists(archive) or sha256(archive) != component["sha256"]:
            with urllib.request.urlopen(component["url"], timeout=300) as answer, open(archive, "wb") as handle:
                shutil.copyfileobj(answer, handle, 1 << 20)
        found = sha256(archive)
        if found != component["sha256"]:
            os.unlink(archive)
            raise BuildError("%s: its source has SHA-256 %s, expected %s" % (name, found, component["sha256"]))
        os.makedirs(source)
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(source, filter="data")
            else:
                # The checksum above says that it is the pinned archive.
                tar.extractall(source)
        inner = os.listdir(source)
        if len(inner) == 1:
            source = os.path.join(source, inner[0])
        return source, {"url": component["url"], "sha256": found}
    shutil.copytree(component["folder"], source)
    return source, {"folder": component["folder"]}


def build(plan, component, place, venv, sources):
    """Build one component and return what is noted of it."""
    env = environment(plan, venv)
    started = time.time()
    source, origin = fetch(component, place, env)
    python = os.path.join(venv, "bin", "python")
    name = component["name"]
    if component["requirements_file"]:
        constraints = os.path.join(plan["work"], "constraints.txt")
        needs = ["--constraint", constraints, *plan["index"], "--requirement", component["requirements_file"]]
        run(name, [python, "-m", "pip", "install", *needs], env, cwd=source)
    for argv in component["prepare"]:
        run(name, [python if word == "python3" else word for word in argv], env, cwd=source)
    for key, value in component["environment"].items():
        env[key] = value.format(**sources) if "{" in value else value
    wheels = os.path.join(place, "wheel")
    shutil.rmtree(wheels, ignore_errors=True)
    # Without isolation: with it pip would fetch the CUDA torch that pyproject.toml names, and build against that.
    argv = [python, "-m", "pip", "wheel", "--verbose", "--no-build-isolation", "--no-deps", "--wheel-dir", wheels, "."]
    run(name, argv, env, cwd=source)
    made = sorted(os.listdir(wheels))
    if len(made) != 1 or not made[0].endswith(".whl"):
        raise BuildError("%s: expected one wheel, got %s" % (name, ", ".join(made) or "none"))
    wheel = os.path.join(wheels, made[0])
    note = {"name": name, "wheel": made[0], "wheel_sha256": sha256(wheel), "seconds": round(time.time() - started)}
    note.update(origin, source=source, fingerprint=component["fingerprint"])
    return note


def finished(component, place):
    """Return what is noted of a component that needs no build, or None."""
    note = read(os.path.join(place, "done.json"))
    if not note or note["fingerprint"] != component["fingerprint"]:
        return None
    wheel = os.path.join(place, "wheel", note["wheel"])
    return note if os.path.exists(wheel) and sha256(wheel) == note["wheel_sha256"] else None


def collect(plan, notes, venv):
    """Put the wheels that were built, and all that they need, into the wheelhouse."""
    say("collecting the wheels")
    os.makedirs(plan["path"], exist_ok=True)
    for old in glob.glob(os.path.join(plan["path"], "*.whl")):
        os.unlink(old)
    pins = []
    for number, note in enumerate(notes, 1):
        shutil.copy(
            os.path.join(plan["work"], "%02d-%s" % (number, note["name"]), "wheel", note["wheel"]), plan["path"]
        )
        pins.append("%s==%s" % tuple(note["wheel"].split("-")[:2]))
    python = os.path.join(venv, "bin", "python")
    env = environment(plan, venv)
    download = [python, "-m", "pip", "download", "--dest", plan["path"], "--find-links", plan["path"], *plan["index"]]
    constraints = os.path.join(plan["work"], "constraints.txt")
    # `wheel` makes a wheel of a part that an index has as a source only, and takes the others as they are.
    needs = [python, "-m", "pip", "wheel", "--prefer-binary", "--wheel-dir", plan["path"], "--find-links", plan["path"]]
    run("what they need", [*needs, *plan["index"], "--constraint", constraints, *pins, *plan["fetched"]], env)
    installer = os.path.join(plan["path"], "installer.txt")
    with open(installer, "w") as handle:
        handle.write(plan["installer"])
    exact = ["--no-deps", "--require-hashes", *plan["pip_options"], "--requirement", installer]
    run("the installer", [*download, *exact], env)


def carry_out(plan):
    """Do what the plan says and return the notes of its components."""
    venv = os.path.join(plan["work"], "venv")
    prepare(plan, venv)
    notes, sources = [], {}
    count = len(plan["components"])
    for number, component in enumerate(plan["components"], 1):
        place = os.path.join(plan["work"], "%02d-%s" % (number, component["name"]))
        os.makedirs(place, exist_ok=True)
        note = finished(component, place)
        if note is None:
            say("[%d/%d] %s: building" % (number, count, component["name"]))
            note = build(plan, component, place, venv, sources)
            # Into the environment too, since the next ones are built against it.
            wheel = os.path.join(place, "wheel", note["wheel"])
            argv = [os.path.join(venv, "bin", "python"), "-m", "pip", "install", "--no-deps", "--no-index"]
            run(component["name"], [*argv, "--force-reinstall", wheel], environment(plan, venv))
            write(os.path.join(place, "done.json"), note)
            say("[%d/%d] %s: built in %d s" % (number, count, component["name"], note["seconds"]))
        else:
            say("[%d/%d] %s: kept, its inputs did not change" % (number, count, component["name"]))
        sources[component["name"]] = note["source"]
        notes.append(note)
    collect(plan, notes, venv)
    return notes


def main():
    """Entry point: build_components.py PLAN."""
    plan = read(sys.argv[1])
    result = os.path.join(plan["work"], "result.json")
    document = {"ok": False, "message": "", "components": []}
    try:
        document["components"] = carry_out(plan)
        document["ok"] = True
        say("done")
    except (BuildError, OSError, subprocess.SubprocessError, tarfile.TarError) as exc:
        document["message"] = str(exc)
        say("failed: %s" % exc)
    write(result, document)
    return 0 if document["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
