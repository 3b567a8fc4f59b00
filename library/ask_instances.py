#!/usr/bin/python
# Copyright the instinct-fleet contributors
# SPDX-License-Identifier: Apache-2.0
"""Ask each instance of a node a question, from the node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ask_instances
short_description: Ask each vLLM instance of a node a question and check the answer
description:
  - Asks all instances side by side over their OpenAI-compatible API, with temperature 0.
  - Fails with everything that was wrong, once, after all were asked. Changes nothing.
options:
  instances:
    description: The instances to ask.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the instance.
        type: str
        required: true
      url:
        description: Base address, such as V(http://127.0.0.1:8000).
        type: str
        required: true
      model:
        description: Name by which clients ask for the model.
        type: str
        required: true
      question:
        description: What to ask.
        type: str
        default: Say one word.
      answer:
        description: Text that the answer must contain. Without it any non-empty answer is right.
        type: str
      key_file:
        description: File on the node that holds V(VLLM_API_KEY=...).
        type: path
  timeout:
    description: Seconds that each question may take.
    type: int
    default: 300
author:
  - instinct-fleet contributors (@instinct-fleet)
attributes:
  check_mode:
    support: full
    description: Nothing is changed in any mode.
  diff_mode:
    support: none
    description: Nothing is changed.
"""

EXAMPLES = r"""
- name: Ask
  ask_instances:
    instances:
      - name: demo
        url: http://127.0.0.1:8000
        model: tiny
        question: What is the capital of France?
        answer: Paris
"""

RETURN = r"""
answers:
  description: Name, answer, model and seconds of each instance.
  returned: always
  type: list
  elements: dict
"""

import json
import threading
import time
import urllib.error
import urllib.request

from ansible.module_utils.basic import AnsibleModule


def read_key(path):
    """Return the key of an environment file, or None where the file has none."""
    with open(path) as handle:
        for line in handle:
            name, _sep, value = line.strip().partition("=")
            if name == "VLLM_API_KEY":
                return value.strip("\"'")
    return None


def ask(instance, timeout):
    """Ask one instance; return its answer or what was wrong."""
    result = {"name": instance["name"], "answer": None, "problem": None}
    headers = {"Content-Type": "application/json"}
    try:
        if instance["key_file"]:
            headers["Authorization"] = "Bearer %s" % read_key(instance["key_file"])
        body = {
            "model": instance["model"],
            "messages": [{"role": "user", "content": instance["question"]}],
            "temperature": 0,
            "max_tokens": 32,
        }
        url = instance["url"] + "/v1/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        started = time.monotonic()
        # A proxy of the environment must not come between a node and itself.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout) as response:
            document = json.load(response)
        result["seconds"] = round(time.monotonic() - started, 3)
        result["answer"] = (document["choices"][0]["message"].get("content") or "").strip()
        result["model"] = document.get("model")
    except urllib.error.HTTPError as exc:
        result["problem"] = "HTTP %d from %s: %s" % (exc.code, url, exc.read(500).decode("utf-8", "replace"))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as exc:
        result["problem"] = "no usable answer: %s: %s" % (type(exc).__name__, exc)
    if result["problem"] is None:
        wanted = instance["answer"]
        if not result["answer"]:
            result["problem"] = "the answer is empty, expected text"
        elif wanted and wanted not in result["answer"]:
            result["problem"] = "it answered %r, expected text that contains %r" % (result["answer"], wanted)
    return result


def main():
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "instances": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "url": {"type": "str", "required": True},
                    "model": {"type": "str", "required": True},
                    "question": {"type": "str", "default": "Say one word."},
                    "answer": {"type": "str"},
                    "key_file": {"type": "path", "no_log": False},
                },
            },
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    answers = []
    threads = []
    for instance in module.params["instances"]:
        thread = threading.Thread(target=lambda i=instance: answers.append(ask(i, module.params["timeout"])))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    answers.sort(key=lambda a: a["name"])
    wrong = [
        "instance %s, asked %r: %s" % (i["name"], i["question"], a["problem"])
        for i in module.params["instances"]
        for a in answers
        if a["name"] == i["name"] and a["problem"]
    ]
    if wrong:
        module.fail_json(msg="; ".join(wrong), answers=answers)
    module.exit_json(changed=False, answers=answers)


if __name__ == "__main__":
    main()
