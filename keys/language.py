"""The language of texts shown to people: Chinese where the locale says so, else English."""

from __future__ import annotations

import os

__all__ = ["choose"]


def choose(english: str, chinese: str) -> str:
    """Return the text for the user's locale, read from the environment at each call.

    As POSIX has it, the first of LC_ALL, LC_MESSAGES and LANG that is set and not empty decides; Chinese is taken
    where it starts with "zh". Raises nothing.
    """
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        locale = os.environ.get(variable)
        if locale:
            return chinese if locale.lower().startswith("zh") else english
    return english
