#!/bin/sh
# Starts the supervisor of a node, and a shell that waits for its end and kills what it has left, as
# the end of a container would. Both outlive this script and the connection. $1: control folder,
# $2: name of its claim, $3: working directory or "", $4: Python or conda:NAME, other arguments: of
# Python. stdin: its environment as JSON, which no list of processes shows
. ./process_files.sh
. ./find_python.sh
control=$1 name=$2 folder=$(claims_folder) || exit 1
python=$(find_python "$4") || exit 1
[ -z "$3" ] || cd "$3" || exit 1
shift 4
PATH=$(dirname "$python"):$PATH
export PATH
environment=$(cat)
mv "$folder/$name.created" "$folder/$name.running" || exit 17 # withdrawn
boot='import json, os, sys
os.environ.update(json.load(sys.stdin))
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execv(sys.executable, [sys.executable] + sys.argv[1:])'
started=$(
  {
    trap '' HUP INT TERM
    printf %s "$environment" |
      setsid "$python" -I -S -c "$boot" "$@" > /dev/null 2> "$control/supervisor.out" &
    pid=$! began=$(start_of "$!")
    printf '%s %s\n' "$pid" "${began:-0}" | replace "$control/pid" &&
      { cat "$control/pid"; tail -n +2 "$folder/$name.running"; } | replace "$folder/$name.running" &&
      echo yes
    exec > /dev/null 2>&1 # so that this script need not wait
    wait "$pid"
    echo "$?" | replace "$control/exit"
    kill_marked "$control"
  } &
)
[ "$started" = yes ]
