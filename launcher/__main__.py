"""The console script `ddpctl`, and `python -m launcher`."""

from launcher import cli


def main() -> None:
    cli.main()


if __name__ == "__main__":
    main()
