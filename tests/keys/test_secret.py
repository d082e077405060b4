from __future__ import annotations

import copy
import logging
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keys.secret import Secret, digest, hint, looks_valid, new_key_id, new_secret

# A fixed one, so that form and checksum cannot change unnoticed: issued keys must stay good.
KNOWN = "sk-dcu-chat-" + "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg" + "0tzL73"
PEPPER = bytes(range(32))


@pytest.mark.parametrize("purpose", ["chat", "agent"])
def test_a_secret_has_the_promised_form_and_its_own_checksum(purpose: str) -> None:
    text = new_secret(purpose).reveal()
    assert re.fullmatch(rf"sk-dcu-{purpose}-[0-9A-Za-z]{{43}}[0-9A-Za-z]{{6}}", text)
    assert looks_valid(text)
    assert new_secret(purpose).reveal() != text


def test_form_and_checksum_stay_as_they_are() -> None:
    assert looks_valid(KNOWN)
    assert digest(KNOWN, PEPPER).hex() == "4fee1da9ce12ef9447b1d132ee9130a8ae5068e8dc779e125fe3fdfaff8948fa"


@pytest.mark.parametrize("purpose", ["", "Chat", "a-b", "聊天", "1a", "a" * 17, "chat\n"])
def test_a_purpose_that_would_break_the_form_is_refused(purpose: str) -> None:
    with pytest.raises(ValueError, match="purpose"):
        new_secret(purpose)


@given(place=st.integers(0, len(KNOWN) - 1), character=st.characters())
def test_every_change_of_one_character_is_noticed(place: int, character: str) -> None:
    changed = KNOWN[:place] + character + KNOWN[place + 1 :]
    assert looks_valid(changed) == (changed == KNOWN)


@given(st.text())
def test_any_text_can_be_looked_at_and_digested(text: str) -> None:
    assert not looks_valid(text)
    assert len(digest(text, PEPPER)) == 32


@pytest.mark.parametrize(
    "text", ["", KNOWN + "\n", " " + KNOWN, KNOWN + KNOWN, KNOWN[:-1], KNOWN.lower(), "Bearer " + KNOWN, "\udcff" * 9]
)
def test_what_is_no_secret_does_not_look_like_one(text: str) -> None:
    assert not looks_valid(text)
    digest(text, PEPPER)


def test_the_digest_depends_on_the_text_and_on_the_pepper() -> None:
    assert len({digest(KNOWN, PEPPER), digest(KNOWN + "x", PEPPER), digest(KNOWN, b"p")}) == 3
    with pytest.raises(ValueError, match="pepper"):
        digest(KNOWN, b"")


def test_a_hint_shows_the_purpose_and_four_characters() -> None:
    assert hint(KNOWN) == "sk-dcu-chat-…zL73"
    with pytest.raises(ValueError, match="secret") as refused:
        hint(KNOWN[:-1])
    assert KNOWN[:-1] not in str(refused.value)


def test_a_secret_never_shows_itself(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(KNOWN)
    caplog.set_level(logging.INFO)
    logging.getLogger("test").info("made %s %r", secret, [secret])
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>9}",
        format(secret, "^80"),
        "{}".format(secret),  # noqa: UP032  the method is what is tried
        caplog.text,
    ]
    shown += [str([secret]), str({"secret": secret}), str(ValueError(secret)), repr(ValueError(secret))]
    assert all("***" in text for text in shown)
    assert not any(KNOWN[12:30] in text for text in shown)
    assert not hasattr(secret, "__dict__")


def test_a_secret_is_not_pickled_or_copied() -> None:
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            leak(Secret(KNOWN))


def test_secrets_are_equal_by_their_text() -> None:
    assert Secret(KNOWN) == Secret(KNOWN)
    assert Secret(KNOWN) != Secret(KNOWN + "x")
    assert Secret(KNOWN) != KNOWN
    assert len({Secret(KNOWN), Secret(KNOWN)}) == 1


def test_key_ids_have_the_promised_form() -> None:
    assert re.fullmatch(r"k_[0-9A-Za-z]{16}", new_key_id())
    assert new_key_id() != new_key_id()
