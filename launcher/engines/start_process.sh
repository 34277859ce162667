#!/bin/sh
# Starts the supervisor of a node, and a shell that waits for it to end and then kills the processes
# that it left behind, as the end of a container would. Both outlive this script and the connection.
# $1: control folder, $2: name of the node's claim, $3: working directory or "", $4: number of words
# that follow and enter its container, or 0; then: Python or conda:NAME, and its arguments.
# stdin: the supervisor's environment as JSON, so that no list of processes shows it
. ./process_files.sh
. ./find_python.sh
control=$1 name=$2 entering=$4 folder=$(claims_folder) scratch='' || exit 1
if [ "$entering" = 0 ]; then
  program=$(find_python "$5") || exit 1
else
  program=$(command -v "$5") || { echo "$5 is not installed" >&2; exit 1; }
fi
[ -z "$3" ] || cd "$3" || exit 1
shift 5
PATH=$(dirname "$program"):$PATH
export PATH
environment=$(whole_object) || exit 1
{ mv "$folder/$name.created" "$folder/$name.running" && [ -f "$control/labels.json" ]; } ||
  { echo "another command has withdrawn it" >&2; exit 1; }
if [ "$entering" != 0 ]; then # the container's /tmp, and how to start Python in the container
  scratch=$(mktemp -d /tmp/ddpctl-XXXXXX) && ln -sfn "$scratch" "$control/tmp" &&
    printf '%s\0' "$program" "$@" | head -z -n $((entering + 1)) > "$control/command" || exit 1
fi
started=$(
  {
    trap '' HUP INT TERM
    printf %s "$environment" | { # a stop may come before the supervisor handles signals
      trap - TERM
      exec setsid "$program" "$@" > /dev/null 2> "$control/supervisor.out"
    } &
    pid=$! began=$(start_of "$!")
    if printf '%s %s\n' "$pid" "${began:-0}" | replace "$control/pid" &&
      { cat "$control/pid"; tail -n +2 "$folder/$name.running"; } | replace "$folder/$name.running"; then
      echo yes
    else # the disk is full: without these files, nobody could find and stop the node
      kill -s KILL "$pid"
    fi
    exec > /dev/null 2>&1 # so that this script need not wait
    # systemd-tmpfiles deletes old files in /tmp, but none in a folder that somebody has locked
    exec 8< "$folder" 9< "${scratch:-$folder}"
    flock -s 8
    flock -s 9
    wait "$pid"
    code=$?
    # If the supervisor could not start, put the reason in the log.
    [ -s "$control/journal" ] ||
      tail -n 20 "$control/supervisor.out" | sed "s/^/$(date +%s)	-	/" >> "$control/journal"
    echo "$code" | replace "$control/exit"
    kill_marked "$control"
    if [ -n "$scratch" ]; then
      kill_session "$pid"
      rm -rf "$scratch"
    fi
  } &
)
[ "$started" = yes ]
