"""`python -m gateway` is the `dcugate` command."""

from gateway.cli import main

main()
