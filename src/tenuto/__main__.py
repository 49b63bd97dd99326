"""`python -m tenuto`: the command line."""

from tenuto.cli import main

main()
