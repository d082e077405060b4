"""Logging set up once, with a last filter that removes anything of a key's form."""

from __future__ import annotations

import logging
import re
import sys

__all__ = ["KeyFilter", "set_up_logs"]

_SECRET = re.compile(r"sk-[A-Za-z0-9_-]{12,}")


class KeyFilter(logging.Filter):
    """Secrets are kept out of logs by their type; this is the net below."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrites the record's text where it holds a key; never drops a record."""
        text = record.getMessage()
        if _SECRET.search(text):
            record.msg, record.args = _SECRET.sub("sk-***", text), None
        return True


def set_up_logs(level: str = "INFO") -> None:
    """Sends logs to standard error, one line a record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(KeyFilter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
