from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.config.model import Backend, Listener, Routes

MODELS = [{"name": "a", "aliases": ["b"], "workers": ["w"]}]


def test_a_model_is_found_by_name_and_alias() -> None:
    routes = Routes.model_validate({"models": MODELS})
    assert routes.find_model("a") is routes.find_model("b") is not None
    assert routes.find_model("c") is None


def test_a_listener_is_host_and_port() -> None:
    assert (Listener(address="127.0.0.1:80").host, Listener(address="127.0.0.1:80").port) == ("127.0.0.1", 80)
    with pytest.raises(ValidationError):
        Listener(address="8080")


def test_an_address_of_another_scheme_is_refused() -> None:
    with pytest.raises(ValidationError):
        Backend(name="x", address="ftp://x", model="m")


def test_deadlines_are_above_the_longest_prompt_by_default() -> None:
    assert Routes.model_validate({"models": MODELS}).deadlines.first_token_s > 1246.6
