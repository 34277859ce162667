#!/bin/sh
# Stops the supervisor of a node, and what a killed one has left. $1: control folder, $2: run,
# $3: node rank, $4: tenths of a second between SIGTERM and SIGKILL
. ./process_files.sh
line=$(process_in "$1/pid") tenths=$4
[ -n "$line" ] || exit 0 # never started
for number in TERM KILL; do
  alive "$line" || break
  kill -s "$number" "${line%% *}"
  while alive "$line" && [ "$tenths" -gt 0 ]; do
    sleep 0.1
    tenths=$((tenths - 1))
  done
  tenths=100
done
grep -lzx "DDPCTL_RUN_ID=$2" /proc/[0-9]*/environ 2>/dev/null |
  xargs -r grep -lzx "DDPCTL_NODE_RANK=$3" 2>/dev/null |
  while read -r file; do
    pid=${file#/proc/}
    kill -s KILL "${pid%/environ}" 2>/dev/null
  done
:
