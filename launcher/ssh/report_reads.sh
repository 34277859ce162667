#!/bin/sh
# To be sourced. $report_reads is a script for `sh -c "$report_reads" COMMAND ARGUMENTS...`, which runs
# the command. Every few seconds, it prints an empty row (a NUL) to descriptor 3 if the command has read
# more since, so that the caller can tell a slow disk from one that hangs.
# shellcheck disable=SC2016,SC2034 # the inner shell expands it; scripts that source this file use it
report_reads='
  "$0" "$@" 3>&- &
  command=$!
  {
    trap "kill \$pause; exit" TERM # so that no sleep outlives the command
    while sleep 5 3>&- & pause=$!; wait $pause; [ -d /proc/$command ]; do
      now=$(cat /proc/$command/fdinfo/*)
      [ "$now" = "$before" ] || printf "\0" >&3
      before=$now
    done
  } >/dev/null 2>&1 &
  reports=$!
  wait $command
  code=$?
  kill $reports 2>/dev/null
  exit $code'
