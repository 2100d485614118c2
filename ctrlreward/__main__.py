"""`python -m ctrlreward`: the command line."""

from ctrlreward.cli import main

main()
