from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.headers import new_request_id, presented_key


@given(st.binary(min_size=17, max_size=17))
def test_ids_have_the_form_that_the_runner_looks_for(entropy: bytes) -> None:
    assert re.fullmatch(r"dcu-[0-9a-z]{26}", new_request_id(entropy))


def test_a_key_comes_as_bearer_or_x_api_key() -> None:
    assert presented_key({"Authorization": "Bearer sk-a"}) == "sk-a"
    assert presented_key({"Authorization": "bearer  sk-a "}) == "sk-a"
    assert presented_key({"x-api-key": "sk-b"}) == "sk-b"
    assert presented_key({"Authorization": "Basic eA==", "x-api-key": "sk-b"}) == "sk-b"
    assert presented_key({"Authorization": "Bearer ", "x-api-key": " "}) is None
    assert presented_key({}) is None
