"""The registry of findings, and the document that is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from instinct_fleet import docs
from instinct_fleet.findings import AREAS, CODES, finding
from instinct_fleet.model import SEVERITIES

ROOT = Path(__file__).resolve().parents[2]
#: A finding is made by a call that takes its code first, or with the code in a table.
MADE = re.compile(r"""["'](\w+)["']""")
FAMILIES = re.compile(r"(?:collect|rccl|binding|placement|sources|xgmi|env)_\w+")


def sources() -> dict[str, str]:
    """Return the text of every module that makes findings; the tables of codes themselves left out."""
    tables = {"findings.py", "codes.py"}
    return {str(p): p.read_text("utf-8") for p in (ROOT / "instinct_fleet").rglob("*.py") if p.name not in tables}


def test_check_tells_an_outdated_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--root", str(tmp_path)]) == 0
    assert docs.main(["--root", str(tmp_path), "--check"]) == 0
    (tmp_path / "docs/findings.md").write_text("old", "utf-8")
    assert docs.main(["--root", str(tmp_path), "--check"]) == 1
    assert "is out of date: run `make docs`" in capsys.readouterr().err


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_is_explained_and_made_somewhere(code: str) -> None:
    entry = CODES[code]
    assert entry.area in AREAS
    assert entry.severity in SEVERITIES
    assert entry.title
    assert not entry.title.endswith(".")
    assert entry.explanation.endswith(".")
    assert entry.remedy.endswith((".", ")"))
    assert f"### `{code}`" in docs.findings_markdown()
    # Some modules put their area in front of the code when they make the finding.
    bare = code.removeprefix("serve_args_").removeprefix("fit_")
    pattern = rf"[\"']({code}|{bare})[\"']"
    assert any(re.search(pattern, text) for text in sources().values()), f"nothing makes {code}"


def test_no_module_makes_an_unregistered_code() -> None:
    words = {word for text in sources().values() for word in MADE.findall(text) if FAMILIES.fullmatch(word)}
    assert words, "the pattern finds nothing"
    facts = {"xgmi_status", "xgmi_ports", "xgmi_bit_rate_gbps", "xgmi_link_gbps", "xgmi_read_bytes", "xgmi_write_bytes"}
    others = {word for word in words if word not in CODES} - facts
    assert {w for w in others if not w.startswith(("xgmi_", "rccl_"))} == set()


def test_a_finding_takes_the_default_severity_and_remedy() -> None:
    item = finding("gpu_count", "node", "7 GPUs seen, expected 8")
    assert (item.severity, item.remedy) == ("error", CODES["gpu_count"].remedy)
    assert finding("gpu_count", "node", "x", severity="info", remedy="y").severity == "info"
    with pytest.raises(KeyError):
        finding("no_such_code", "node", "x")
