"""Tables like Docker's: plain columns, two spaces apart."""

from collections.abc import Mapping, Sequence

from ..text import one_line


def table(
    rows: Sequence[Sequence[str]], head: Sequence[str], colors: Mapping[str, str] | None = None
) -> str:
    """Return a table, with the titles `head` above it. colors: SGR color by cell text."""
    cells = [[one_line(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def drawn(text: str, width: int) -> str:
        color = (colors or {}).get(text)
        return f"\x1b[{color}m{text:{width}}\x1b[0m" if color else f"{text:{width}}"

    return "\n".join("  ".join(map(drawn, row, widths)).rstrip() for row in cells)
