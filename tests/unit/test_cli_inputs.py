"""Files that no command can use: each is told which file it is and what was expected, never with a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from instinct_fleet.cli import main

FIT = ("fit", "--gpus", "8", "--vram-gib", "192", "--tp", "8", "--model-config")
CHECK = ("check-args", "--vllm-version", "0.33.0", "--", "M", "--config")
WHEELHOUSE = ("wheelhouse", "--python", "3.12", "--glibc", "2.35")

CONTENTS = {
    "nested": b"[" * 200_000,
    "long-number": b'{"gpus": ' + b"9" * 10_000 + b"}",
    "no-date": b"a: 2020-13-45\n",
    "binary": bytes(range(256)),
    "empty": b"",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=list(CONTENTS))
@pytest.mark.parametrize(
    "command",
    [("inspect",), ("rccl",), ("knee",), FIT, CHECK, (*WHEELHOUSE, "{dir}", "--lock"), ("codeobjects",)],
    ids=lambda command: command[0],
)
def test_no_content_is_a_traceback(
    command: tuple[str, ...], content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    code = main([*(word.format(dir=tmp_path) for word in command), str(path)])
    said = capsys.readouterr()
    assert code in (1, 2) or command == ("codeobjects",) or (command, content) == (CHECK, b"")
    if code == 2:
        assert said.err.startswith(f"instinct-fleet {command[0]}: {path}: ") or said.out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("codeobjects", "{dir}/" + "a" * 300), "file name too long; expected a file or a directory"),
        (("knee", "{dir}/" + "a" * 300), "File name too long; expected bench results"),
    ],
)
def test_a_path_that_cannot_be_asked_about(
    command: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(dir=tmp_path) for word in command]) == 2
    assert words in capsys.readouterr().err


def test_weights_that_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "a.safetensors"
    weights.write_bytes(b"")
    opened = Path.open

    def refused(path: Path, mode: str = "r", **options: str) -> object:
        # The tests may run as root, who may read everything.
        if path == weights:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, mode, **options)

    monkeypatch.setattr(Path, "open", refused)
    assert main([*FIT, str(tmp_path / "config.json")]) == 2
    assert f"{weights}: cannot be read: Permission denied; expected" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--vram-gib", "--gpu-memory-utilization", "--reserve-gib"])
@pytest.mark.parametrize("value", ["nan", "inf", "x"])
def test_fit_takes_no_number_that_json_lacks(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*FIT, "config.json", option, value])
    assert caught.value.code == 2
    assert f"{option}: got {value!r}, expected a finite number" in capsys.readouterr().err
