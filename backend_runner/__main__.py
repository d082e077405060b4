"""`python -m backend_runner`."""

from __future__ import annotations

import sys

from backend_runner.cli import main

if __name__ == "__main__":
    sys.exit(main())
