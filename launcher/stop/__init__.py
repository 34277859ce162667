"""Stop runs, and verify that nothing is left.

The stages of a kill: a Target (what the user asks for, choose_runs.py) -> HostedRuns (the runs, with the
hosts that have or may have them) -> a Stop per run (stop_on_host.py), applied to all hosts at once: mark
the run as cancelled, send SIGTERM to its supervisors (launcher/supervisor/stopping.py says how they stop
their ranks), send SIGKILL after the timeout, remove, list again, wait for the run's last processes -> a
HostResult per host: what was found and what is left -> a StoppedRun per run, which prints and records
the result (stopped_run.py) -> the exit code (kill.py). A supervisor that finds the mark ends its node as
CANCELLED, so a launch that follows the run exits with 7.

Before the first of these stops, `cancel_starts` (kill.py) cancels what commands on this machine are
about to start for the run, even if no host can be reached: a resume loses its lock, and a launcher that
is about to restart the run finds a mark in the run's folder (runs/attempt_lock.py).
"""
