#!/bin/sh
# Sends SIGTERM, then SIGKILL, to process $1 as long as its environment has run id $2.
mine() { grep -qzxF "DDPCTL_RUN_ID=$2" "/proc/$1/environ" 2>/dev/null; }
for signal in TERM KILL; do
  mine "$@" || exit 0
  kill -$signal "$1"
  n=0; while mine "$@" && [ $n -lt 20 ]; do sleep 0.25; n=$((n+1)); done
done
! mine "$@"
