"""routes.yaml as typed values. Unknown names are refused; every text of a rule says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from keys.language import choose

__all__ = ["Backend", "Deadlines", "Limits", "Listener", "Model", "Routes"]


def _form(pattern: str, english: str, chinese: str) -> Callable[[str], str]:
    """A check of a text's form that says what is wanted in words, not in a pattern."""

    def check(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(f"{text!r:.80} {choose(english, chinese)}")
        return text

    return check


def _has_port(text: str) -> str:
    if not 1 <= int(text.rsplit(":", 1)[1]) <= 65535:
        raise ValueError(choose(f"{text!r}: a port is a number from 1 to 65535", f"{text!r}：端口应为 1 到 65535"))
    return text


_is_name = _form(
    r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}",
    "is no name: use letters, digits and . _ : / -, 128 at most",
    "不是合法名称：只能用字母、数字和 . _ : / -，最多 128 个字符",
)
_is_listener = _form(
    r"[^:\s]+:\d{1,5}",
    "is no address to listen on: write HOST:PORT, such as 127.0.0.1:8080",
    "不是监听地址：请写成 主机:端口，例如 127.0.0.1:8080",
)
_is_address = _form(
    r"unix:/\S+|http://[^\s:/?#@]+(:\d{1,5})?/?",
    "is no address: write unix:/path or http://host:port, without /v1 or any other path",
    "不是地址：请写成 unix:/路径 或 http://主机:端口，不带 /v1 等路径",
)
Name = Annotated[str, AfterValidator(_is_name)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Listener(_Strict):
    """One address to serve on, `HOST:PORT`."""

    address: Annotated[str, AfterValidator(_is_listener), AfterValidator(_has_port)]

    @property
    def host(self) -> str:
        return self.address.rsplit(":", 1)[0]

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])


class Backend(_Strict):
    """A model server named by its address only: probed by the gateway, served with estimates."""

    name: Name
    address: Annotated[str, AfterValidator(_is_address)]
    model: str
    api_key_file: Path | None = None


class Model(_Strict):
    """A public model name, its aliases, and who serves it: names of workers or backends."""

    name: Name
    aliases: tuple[Name, ...] = ()
    workers: tuple[Name, ...]
    default_output_tokens: Annotated[int, Field(ge=1)] = 1024


class Deadlines(_Strict):
    """Seconds. `first_token_s` and `total_s` suit a 131K prompt on a Z100: 1,246 s to the first token."""

    connect_s: Annotated[float, Field(gt=0)] = 5.0
    first_token_s: Annotated[float, Field(gt=0)] = 1800.0
    between_tokens_s: Annotated[float, Field(gt=0)] = 300.0
    total_s: Annotated[float, Field(gt=0)] = 3600.0
    drain_s: Annotated[float, Field(gt=0)] = 30.0


class Limits(_Strict):
    """Bounds on what a client may send."""

    body_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024


class Routes(_Strict):
    """The whole of routes.yaml. Worker files are relative to it."""

    listen: tuple[Listener, ...] = (Listener(address="127.0.0.1:8080"),)
    workers: tuple[Path, ...] = ()
    backends: tuple[Backend, ...] = ()
    models: tuple[Model, ...]
    deadlines: Deadlines = Deadlines()
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Routes:
        if not self.models:
            raise ValueError(choose("models: name at least one model", "models：至少需要一个模型"))
        if idle := [model.name for model in self.models if not model.workers]:
            names = ", ".join(idle)
            raise ValueError(
                choose(
                    f"models: {names}: name at least one worker or backend under `workers`",
                    f"models：{names}：请在 `workers` 下至少写一个工作进程或后端",
                )
            )
        seen: set[str] = set()
        for model in self.models:
            for name in (model.name, *model.aliases):
                if name in seen:
                    raise ValueError(
                        choose(
                            f"models: the name {name!r} is given twice; a name or alias leads to one model",
                            f"models：名称 {name!r} 重复；一个名称或别名只能指向一个模型",
                        )
                    )
                seen.add(name)
        return self

    def find_model(self, name: str) -> Model | None:
        """The model of that public name or alias."""
        return next((m for m in self.models if name == m.name or name in m.aliases), None)
