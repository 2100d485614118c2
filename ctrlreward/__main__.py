"""Entry point of `python -m ctrlreward`."""

from ctrlreward.cli import main

main()
