"""The console script `ddpctl`, and `python -m launcher`."""

from .cli import main

if __name__ == "__main__":
    main()
