"""Ask a release of vLLM whether its own argument parser takes configurations. Run by its Python; nothing is started.

The one argument is a JSON list of {instance, config, config_path, arguments, environment}; the last line printed is a
JSON list of {instance, message}, the message being null where the parser takes it.
"""

import json
import os
import sys
import tempfile
import traceback


def import_parser():
    """Import vLLM's command line once, and make `serve` say that it was reached instead of starting an engine."""
    import vllm.entrypoints.cli.main as entry
    from vllm.entrypoints.cli import serve

    def reached(_args):
        os._exit(0)

    serve.ServeSubcommand.cmd = staticmethod(reached)
    return entry.main


def last_words(text):
    """Return the line of a parser's or an exception's output that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if ": error: " in line]
    return (said or lines or ["it ended without a word"])[-1][-600:]


def ask(parse, entry, folder):
    """Let a child of this process parse one configuration, and return why it did not, or None."""
    path = os.path.join(folder, os.path.basename(entry["config_path"]))
    with open(path, "w") as handle:
        handle.write(entry["config"])
    log = os.path.join(folder, "said")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.environ.update(entry["environment"])
            sys.argv = ["vllm", *(path if word == entry["config_path"] else word for word in entry["arguments"])]
            parse()
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # A parser that ends well without reaching the server (a help text, say) did not take it either.
            os._exit(code or 1)
    status = os.waitpid(child, 0)[1]
    if status == 0:
        return None
    with open(log, errors="replace") as handle:
        return last_words(handle.read()).replace(path, entry["config_path"])


def main():
    """Ask about every configuration, and print the answers."""
    entries = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        # Neither caches nor usage statistics of this question may stay anywhere.
        for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"):
            os.environ[name] = folder
        os.environ.update(VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1")
        parse = import_parser()
        answers = [{"instance": entry["instance"], "message": ask(parse, entry, folder)} for entry in entries]
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main()
