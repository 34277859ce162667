"""Check that the hosts' clocks agree."""

import statistics
from collections.abc import Iterator

from .findings import Finding, warning
from .fleet import Fleet
from .machine import Machine

SKEW = 1.0  # seconds; a larger difference confuses logs, caches and certificates


def check_clock(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that the clock is near the median of all clocks, including the launching machine's."""
    facts, skews = machine.facts, [0.0, *(m.facts.clock_skew for m in fleet.machines)]
    # of two middle clocks, the launching machine's or the one next to it, not their mean
    middle = [statistics.median_low(skews), 0.0, statistics.median_high(skews)]
    off = facts.clock_skew - statistics.median(middle)
    if abs(off) > SKEW + facts.clock_error:
        what = f"its clock is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the others"
        yield warning(what, "start chrony or systemd-timesyncd on that host")
