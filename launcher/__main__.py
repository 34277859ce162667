"""`python -m launcher` is `ddpctl`."""

from launcher.cli import main

main()
