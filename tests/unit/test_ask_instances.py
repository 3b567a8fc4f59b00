"""ask_instances: the right answer, and each way in which there is none."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.playbook import run_tasks

pytest.importorskip("ansible", reason="ansible is not installed for this Python")


class Server(http.server.BaseHTTPRequestHandler):
    """Answers by the name of the model that is asked for."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["model"] == "guarded" and self.headers.get("Authorization") != "Bearer sk-1":
            self.send_error(401, "wrong key")
            return
        if body["model"] == "down":
            self.send_error(500, "EngineCore encountered an issue")
            return
        said = {"empty": "", "null": None, "guarded": "Paris."}.get(body["model"], "London.")
        document: Any = {"model": body["model"], "choices": [{"message": {"content": said}}]}
        if body["model"] == "odd":
            document = ["not", "an", "object"]
        data = json.dumps(document).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data if body["model"] != "torn" else data[:10])


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def ask(folder: Path, *instances: dict[str, Any]) -> dict[str, Any]:
    task = {"name": "ask", "ask_instances": {"instances": list(instances), "timeout": 10}}
    (result,) = run_tasks(folder, [task])
    return result


def test_a_right_answer_with_a_key_from_a_file(tmp_path: Path, url: str) -> None:
    (tmp_path / "key").write_text('VLLM_API_KEY="sk-1"\n')
    question = {"name": "a", "url": url, "model": "guarded", "question": "Capital?", "answer": "Paris"}
    result = ask(tmp_path, {**question, "key_file": str(tmp_path / "key")})
    assert not result.get("failed")
    assert result["answers"][0]["answer"] == "Paris."
    assert result["changed"] is False


def test_every_problem_is_told_at_once(tmp_path: Path, url: str) -> None:
    models = {
        "wrong": "it answered 'London.', expected text that contains 'Paris'",
        "empty": "the answer is empty",
        "null": "the answer is empty",
        "down": "HTTP 500",
        "guarded": "HTTP 401",
        "odd": "no usable answer: TypeError",
        "torn": "no usable answer: JSONDecodeError",
    }
    result = ask(
        tmp_path, *({"name": m, "url": url, "model": m, "question": "Capital?", "answer": "Paris"} for m in models)
    )
    assert result["failed"] is True
    for model, problem in models.items():
        assert f"instance {model}, asked 'Capital?': {problem}" in result["msg"]


def test_nobody_listens_and_no_key_file(tmp_path: Path, url: str) -> None:
    result = ask(
        tmp_path,
        {"name": "a", "url": "http://127.0.0.1:1", "model": "m"},
        {"name": "b", "url": url, "model": "m", "key_file": str(tmp_path / "missing")},
    )
    assert "instance a, asked 'Say one word.': no usable answer: URLError" in result["msg"]
    assert "instance b" in result["msg"]
    assert "FileNotFoundError" in result["msg"]
