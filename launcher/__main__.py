"""The console script `ddpctl`, and `python -m launcher`."""

import gc

# Objects between two looks for garbage: with Python's own 700 the program takes a tenth longer to load.
GARBAGE = 100_000


def main() -> None:
    gc.set_threshold(GARBAGE)
    from launcher import cli

    cli.main()


if __name__ == "__main__":
    main()
