"""Stop runs, and verify that nothing is left.

What a kill is on its way: a Target (what the user asks for, choose_runs.py) -> HostedRuns (its runs, and
the hosts that have or may have them) -> a Stop of each run, which does on every host at once: mark it
cancelled, send SIGTERM to its supervisor, SIGKILL after the timeout, remove, list again (stop_run.py)
-> Stopped per host -> Killed, which prints the verdict and records it (kill.py). A supervisor that
finds the mark ends its node as CANCELLED; so a launch that follows the run exits with 7.
"""
