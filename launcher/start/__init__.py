"""Start attempts: launch, resume, automatic restarts, attach.

The stages of a launch (Starter.try_to_run in run_attempt.py): a Request (what the user wants) ->
CheckedHosts (what the hosts answered) -> PushResult (what was sent to them) -> Plan (all that will
happen) -> PlannedAttempt (the plan with its connections) -> StartedRun (its containers are running),
which launcher.follow follows to its Outcome. With --wait, a Refused attempt waits in line and tries
again.

Three marks on a host keep runs apart. `kill` removes or cancels each of them.
- A created node is a claim to its GPUs from its creation until it ends (engines/claims.py).
- A ticket keeps a run's turn while it has no node: while it waits in line, or before a restart. It
  expires unless it is renewed (tickets.py, waiting_line.py).
- A reservation is a link whose target names a command: only this command, or the process to which
  it handed the run over, may start the attempt, and only if `kill` has not cancelled it
  (reservation.py).

A ticket is an object of the host's engine, because every user has to see it, and it goes away by
itself. A reservation is a file of this user, and it stays, because an attempt's number is used once.

On the launching machine, an attempt has a lock: only the process that holds it waits in line for the
attempt, starts it, records it and restarts the run (follow/detach.py).

In a container: Container.entrypoint (plan/build.py) -> supervisor/main.py -> Round -> torchrun ->
ranks. On the way back: the supervisor's End event -> NodeEvidence.end_state -> Session's final
state -> Outcome.exit -> exit code (cli.py).
"""
