#!/bin/sh
# Runs its arguments as a command, and stops the command and everything it has started when standard
# input closes: without a terminal, sshd sends no signal when the reader disconnects. Exits with the
# command's exit code.
exec 3<&0
setsid "$@" </dev/null 3<&- &
command=$!
{ cat <&3; kill -- "-$command" || kill "$command"; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$command"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
