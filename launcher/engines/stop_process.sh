#!/bin/sh
# Stops the supervisor of a node, and the processes that a killed supervisor has left behind.
# $1: control folder, $2: tenths of a second between SIGTERM and SIGKILL, $3: name of the node's claim
. ./process_files.sh
folder=$(claims_folder) || exit 1
rm -f "$folder/$3.created" # without this file, the node can no longer start
line=$(process_in "$1/pid") tenths=50
while [ -z "$line" ] && [ -e "$folder/$3.running" ] && [ "$tenths" -gt 0 ]; do # the node is being started
  sleep 0.1
  tenths=$((tenths - 1)) line=$(process_in "$1/pid")
done
[ -n "$line" ] || exit 0 # never started
await_end() { # at most $1 tenths of a second
  tenths=$1
  while alive "$line" && [ "$tenths" -gt 0 ]; do
    sleep 0.1
    tenths=$((tenths - 1))
  done
}
alive "$line" && kill -s TERM "${line%% *}"
await_end "$2"
kill_marked "$1" # the supervisor too; Apptainer's own process then ends and unmounts the image
await_end 50
alive "$line" && kill -s KILL "${line%% *}"
await_end 50
