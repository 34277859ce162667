"""The tour page shows what its commands really print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tour import BEGIN, END, PAGE, STEPS, tour

pytestmark = pytest.mark.real

BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def alike(text: str) -> list[tuple[str, list[str]]]:
    """Each command with its lines, whatever they count, when, and in which order ranks speak."""
    commands = [line for _, lines in STEPS for line in lines]
    found = []
    shown = "".join(BLOCK.findall(text))
    for part in re.split(r"(?m)^\$ ", shown)[1:]:
        line, _, output = part.partition("\n")
        # on a slow machine, torchrun's last barrier may fail after the run has succeeded
        if "Error waiting on exit barrier" in output:
            output = re.sub(r"(?m)^\[local\](?! ddpctl).*", "", output)
        plain = re.sub(r"\d{8}-\d{6}-[0-9a-f]{4}", "RUN", output)
        plain = re.sub(r"[\d.,:]*\d[\d.,:]*(e-?\d+)?[TZ]?", "N", plain)
        plain = re.sub(r"\((N |\d+ )?[kM]?B/s\)|N [kM]?B", "SIZE", plain)
        plain = re.sub(r"torch N\S*", "torch N", plain)
        lines = {re.sub(r"\s+", " ", each).strip() for each in plain.splitlines()}
        # on a slow machine, long steps are announced and timed, and a run takes minutes; other tests
        # launch on this machine at the same time
        passing = re.compile(r"\.\.\.$|^ddpctl: (took|ran for) |^RUN WAITING ")
        kept = (each for each in lines if each and not passing.search(each))
        found.append((line, sorted(kept)))
    assert [line for line, _ in found] == commands
    return found


@pytest.mark.timeout(400)
def test_the_tour_is_what_its_commands_print(tmp_path: Path) -> None:
    _, _, rest = PAGE.read_text().partition(BEGIN)
    shown, end, _ = rest.partition(END)
    assert end, "the PAGE has its tour between two marks"
    assert alike(tour(tmp_path)) == alike(shown)
