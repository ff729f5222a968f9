"""`python -m borealis.cli`."""

from borealis.cli import main

main()
