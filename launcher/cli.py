"""The `ddpctl` command."""


def main() -> None:
    raise SystemExit("not yet")
