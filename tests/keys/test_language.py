from __future__ import annotations

import pytest

from keys.language import choose


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "english"),
        ({"LANG": "zh_CN.UTF-8"}, "chinese"),
        ({"LANG": "zh_TW"}, "chinese"),
        ({"LANG": "ZH"}, "chinese"),
        ({"LANG": "en_US.UTF-8"}, "english"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "english"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": ""}, "chinese"),
        ({"LANG": "C", "LC_MESSAGES": "zh_CN.UTF-8"}, "chinese"),
        ({"LC_ALL": "zh_CN.UTF-8", "LC_MESSAGES": "en_US", "LANG": "C"}, "chinese"),
    ],
)
def test_the_first_set_locale_variable_decides(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert choose("english", "chinese") == expected
