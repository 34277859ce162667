"""Start attempts: launch, resume, automatic restarts, attach.

The stages of a launch (Starter.try_to_run in run_attempt.py): a Request (what the user wants) ->
CheckedHosts (what the hosts answered) -> PushResult (what was sent to them) -> PlannedAttempt (the
Plan, which is all that will happen, with its connections), whose nodes are created and started unless
a rival comes first -> StartedRun, which launcher.follow follows to its Outcome. With --wait, a Refused
attempt waits in line and tries again.

Two marks on a host keep other runs from its GPUs. Both are objects of the host's engine, because
every user has to see them. Both expire if the launch dies before it starts the nodes.
- A created node is a claim to its GPUs from its creation until it ends (engines/claims.py).
- A ticket keeps a run's turn while it has no node. A process holds tickets while the run waits in
  line (waiting_line.py), while it follows a run that may restart, and during the pause before a
  restart (restart.py). They expire unless they are renewed (tickets.py).

Two marks keep other commands for the same run from an attempt.
- A reservation, on the hosts, is for commands on all machines: a link whose target names a command.
  Only this command, or the process to which it handed the run over, may start the attempt, and only
  if `kill` has not cancelled it (reservation.py). It is a file that stays, because an attempt's number
  is used once. So it does not show whether the command is alive.
- A lock on the launching machine shows that. The process that waits in line for the attempt, starts
  it, records it and restarts the run holds the lock until the process ends (runs/attempt_lock.py).

`kill` removes the nodes and the tickets, and cancels the reservation. A resume on this machine that
has not reserved its attempt yet loses the lock, and sees that when it makes the reservation. A restart
finds a mark in the run's folder here, so a `kill` that reaches no host ends it too.

In a container: Container.entrypoint (plan/build.py) -> supervisor/main.py -> Round -> torchrun ->
ranks. On the way back: the supervisor's End event -> NodeEvidence.end_state -> Session's final
state -> Outcome.exit -> exit code (cli.py).
"""
