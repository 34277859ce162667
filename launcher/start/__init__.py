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

On the launching machine, WAITING_LOCK ensures that only one process at a time waits in line for a run,
and shows that one is waiting or starting an attempt. From the start on, LOCK shows that a process
records the run and restarts it (follow/detach.py).

In a container: Container.entrypoint (plan/build.py) -> supervisor/main.py -> Round -> torchrun ->
ranks. On the way back: the supervisor's End event -> NodeEvidence.end_state -> Session's final
state -> Outcome.exit -> exit code (cli.py).
"""
