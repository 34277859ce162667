"""Start attempts: launch, resume, automatic restarts, attach.

What a launch is on its way, in run_attempt.py: a Request (what the user wants) -> HostSurvey (what the
hosts answered) -> PushResult (what they got) -> Plan (all that will happen) -> PlannedAttempt (with
the connections) -> StartedRun (its containers run), which launcher.follow follows to its Outcome. A
Refused attempt waits in line, and tries again.

Three marks on a host keep runs apart. `kill` removes or cancels each of them.
- A created node is a claim to its GPUs, from its creation until it is removed (engines/claims.py).
- A ticket keeps a run's turn while no node of it exists: as it waits in line, or before a restart. It
  expires if nothing renews it (waiting_line.py).
- A reservation is a file: only the command that wrote it may start that attempt, and only if `kill`
  has not cancelled it (reservation.py).

In a container: Container.entrypoint (plan/build.py) -> supervisor/main.py -> a Round -> torchrun -> ranks.
And back: the supervisor's event End, or the exit code of a container whose journal has none ->
NodeOutcome.state -> Session's final state -> Outcome.exit -> the process's exit code (cli.py).
"""
