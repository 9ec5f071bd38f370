"""`python -m whichtoken`."""

from whichtoken.cli import main

main()
