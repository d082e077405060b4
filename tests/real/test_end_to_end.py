"""`make up` as the README has it: what it prints works when pasted, the official SDK works, usage is exact, nothing is left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.real.conftest import ROOT, Up, post

pytestmark = [pytest.mark.real, pytest.mark.timeout(400), pytest.mark.program("curl")]

MODEL = "smollm2-135m-instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def usage_of(demo: Up) -> dict[str, Any]:
    rows = json.loads(demo.run(".venv/bin/dcugate", "usage", "--by", "model", "--json"))
    rows = rows["usage"] if isinstance(rows, dict) else rows
    return next((row for row in rows if MODEL in row.values()), {})


def shell(demo: Up, line: str) -> str:
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=ROOT, env=demo.environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_printed_curl_line_answers_sensibly_and_usage_is_exactly_what_the_answer_reported(demo: Up) -> None:
    before = usage_of(demo)
    line = next(x for x in demo.output if x.startswith("curl "))
    answer = json.loads(shell(demo, line))
    assert "Paris" in answer["choices"][0]["message"]["content"]
    after, reported = usage_of(demo), answer["usage"]
    grown = {k: after[k] - before.get(k, 0) for k in ("input_tokens", "cached_tokens", "output_tokens", "requests")}
    cached = (reported.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    assert grown == {
        "input_tokens": reported["prompt_tokens"] - cached,
        "cached_tokens": cached,
        "output_tokens": reported["completion_tokens"],
        "requests": 1,
    }


def test_the_printed_curl_line_streams(demo: Up) -> None:
    line = next(x for x in demo.output if x.startswith("curl ")).replace('"messages"', '"stream": true, "messages"')
    events = [x for x in shell(demo, line).split("\n\n") if x]
    assert events[-1] == "data: [DONE]"
    text = "".join(json.loads(e[6:])["choices"][0]["delta"].get("content") or "" for e in events[:-1])
    assert "Paris" in text
    assert not any('"usage"' in e for e in events)


def test_the_printed_python_line_works(demo: Up) -> None:
    line = next(x for x in demo.output if x.startswith("python3 "))
    assert "Paris" in shell(demo, line)


@pytest.mark.parametrize("language", ["", ".zh-CN"])
def test_every_command_of_the_readme_works(demo: Up, language: str) -> None:
    """`make up` is the fixture and `make test` this very run; the rest is run as written."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / f"README{language}.md").read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.strip().splitlines()]
    assert {"make up", "make test"} <= set(commands)
    for command in commands:
        if command.startswith(("make ", "export ")):
            continue
        out = shell(demo, command)
        if command.startswith("curl"):
            assert "Paris" in out


@pytest.mark.parametrize("base", ["/v1", "/api/v1"])
def test_the_official_sdk_on_both_bases(demo: Up, base: str) -> None:
    with openai.OpenAI(base_url=demo.base + base, api_key=demo.keys["agent"]) as client:
        plain = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)  # type: ignore[arg-type]
        assert "Paris" in (plain.choices[0].message.content or "")
        stream = client.chat.completions.create(
            model="demo", messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}  # type: ignore[arg-type]
        )  # fmt: skip
        chunks = list(stream)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert "Paris" in text
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens  # type: ignore[union-attr]
        assert [m.id for m in client.models.list()] == [MODEL, "demo"]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="nope", messages=QUESTION)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len"):
            client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=9000)  # type: ignore[arg-type]
    with (
        openai.OpenAI(base_url=demo.base + base, api_key="sk-wrong") as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_a_client_built_from_the_articles_settings(demo: Up) -> None:
    settings = json.loads((Path(__file__).parent / "settings.json").read_text())
    settings |= {"api_base": demo.base + "/api", "api_key": demo.keys["chat"], "model": MODEL}
    timeout = openai.Timeout(settings["timeout"]["read_seconds"], connect=settings["timeout"]["connect_seconds"])
    with openai.OpenAI(base_url=settings["api_base"] + "/v1", api_key=settings["api_key"], timeout=timeout) as client:
        stream = client.chat.completions.create(
            model=settings["model"], messages=QUESTION, **settings["default_params"]  # type: ignore[arg-type]
        )  # fmt: skip
        assert "Paris" in "".join(c.choices[0].delta.content or "" for c in stream if c.choices)


def test_the_articles_commands_with_only_base_url_and_key_changed(demo: Up) -> None:
    assert shell(demo, f"curl -s {demo.base}/health") == '{"status":"ok"}'
    answer = shell(
        demo,
        f"""curl -s {demo.base}/api/v1/chat/completions \\
  -H "Authorization: Bearer {demo.keys["chat"]}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "用一句话说明Prefill和Decode的区别"}}],
       "temperature": 0, "max_tokens": 64, "stream": false}}'""",
    )
    assert json.loads(answer)["choices"][0]["message"]["content"]
    script = (Path(__file__).parent / "article_client.py").read_text()
    script = script.replace("https://taotoken.net/api", demo.base + "/api").replace(
        "sk-your-taotoken-key", demo.keys["chat"]
    )
    script = script.replace("qwen3.6-27b-awq", MODEL).replace("* 40000", "* 400")  # 8,192 tokens of context here
    done = subprocess.run([str(ROOT / ".venv/bin/python"), "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"TTFT: \d+\.\ds\nDecode: [1-9]\d*\.\d\d tokens/s", done.stdout)


def test_a_wrong_key_is_401_and_a_missing_model_400(demo: Up) -> None:
    status, body = post(demo.base, "sk-dcu-chat-wrong", {"model": MODEL, "messages": QUESTION})
    assert (status, body["error"]["code"]) == (401, "invalid_api_key")  # type: ignore[index]
    status, _ = post(demo.base, demo.keys["chat"], {"messages": QUESTION})
    assert status == 400


def test_metrics_and_the_workers_secrets(demo: Up) -> None:
    with urllib.request.urlopen(demo.base + "/metrics") as answer:
        text = answer.read().decode()
    assert f'dcugate_requests_total{{model="{MODEL}",purpose="chat",status="completed"}}' in text
    logs = "".join(p.read_text(errors="replace") for p in (demo.state / "logs").iterdir())
    stored = b"".join(p.read_bytes() for p in demo.state.glob("dcugate.db*"))
    for secret in demo.keys.values():
        assert secret not in text + logs + "".join(line for line in demo.output if " key=" in line)
        assert secret.encode() not in stored
    assert not [p for p in demo.tree() if any("sk-" in word for word in p.cmdline())]
    assert os.stat(demo.state / "pepper").st_mode & 0o077 == 0
