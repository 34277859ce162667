"""Read the tables of this package that are text files: error_texts.txt and failure_kinds.txt. Pure."""

import re
from collections.abc import Iterator


def table_entries(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the head, the body and the remedy ("" without one) of each entry.

    Entries are separated by blank lines. The body is indented, the remedy begins with `  = `.
    """
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for entry in re.split(r"\n\n+", text.strip()):
        head, _, rest = entry.partition("\n")
        body, _, remedy = rest.partition("\n  = ")
        yield head, " ".join(body.split()), " ".join(remedy.split())
