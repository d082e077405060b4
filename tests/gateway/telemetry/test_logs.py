from __future__ import annotations

import logging

import pytest

from gateway.telemetry.logs import KeyFilter, set_up_logs


def test_a_key_never_passes_the_last_filter() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "key %s was shown", ("sk-dcu-chat-" + "a" * 49,), None)
    assert KeyFilter().filter(record)
    assert record.getMessage() == "key sk-*** was shown"


def test_logs_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    before = logging.root.handlers[:], logging.root.level
    try:
        set_up_logs()
        logging.getLogger("t").info("sk-dcu-chat-%s", "b" * 49)
        assert "sk-***" in capsys.readouterr().err
    finally:
        logging.root.handlers[:], level = before
        logging.root.setLevel(level)
