"""Start attempts: launch, resume, automatic restarts, attach.

What a launch is on its way, in run_attempt.py: a Request (what the user wants) -> HostSurvey (what the
hosts answered) -> PushResult (what they got) -> Plan (all that will happen) -> PlannedAttempt (with
the connections) -> StartedRun (its containers run), which launcher.follow follows to its Outcome. A
Refused attempt waits in line, and tries again.

In a container: Container.entrypoint (plan/build.py) -> supervisor/main.py -> a Round -> torchrun -> ranks.
And back: the supervisor's event End, or the exit code of a container whose journal has none ->
NodeOutcome.state -> Session's final state -> Outcome.exit -> the process's exit code (cli.py).
"""
