#!/bin/sh
# To be sourced. The files that represent a node of the process engine on its host. In the node's
# control folder: labels.json; once it has started, pid, with the process id and the start time in
# clock ticks, so that a process that reuses the id is never mistaken for the node; after its end,
# exit, with the exit code, unless the host went down. In the claims folder, for all users to read:
# NAME.STATE, with the line of pid (or -) and the labels.
. ../plan/attempts.sh

# Succeeds if $1 is a file or folder that user $2 owns, and not a link.
belongs_to() { [ ! -L "$1" ] && [ "$(stat -c %u "$1" 2>/dev/null)" = "$2" ]; }

# Prints the path of this user's claims folder. Another user may have taken the first name.
claims_folder() {
  user=$(id -u) own=/tmp/ddpctl-claims-$(id -u)
  for folder in "$own" "$own".*; do
    if [ -d "$folder" ] && belongs_to "$folder" "$user"; then
      printf '%s\n' "$folder"
      return
    fi
  done
  mkdir -m 755 "$own" 2>/dev/null || belongs_to "$own" "$user" || # another script of this user made it
    own=$(mktemp -d "$own.XXXXXX") || return
  chmod 755 "$own" && printf '%s\n' "$own"
}

# Replaces file $1 atomically with the text on stdin.
replace() { cat > "${1%/*}/.${1##*/}.$$" && mv "${1%/*}/.${1##*/}.$$" "$1"; }

# Prints the JSON object on stdin. Fails without its end: the command that was sending it has been killed.
whole_object() {
  object=$(cat)
  case $object in '{'*'}') printf '%s\n' "$object" ;; *) return 1 ;; esac
}

# Prints the start time of process $1 in clock ticks, unless the process has ended.
start_of() {
  fields=$(cat "/proc/$1/stat" 2>/dev/null) || return
  # shellcheck disable=SC2086 # fields
  set -- ${fields##*) }
  [ "$1" = Z ] || printf '%s\n' "${20}"
}

# Succeeds if the process in line $1 (process id and start time) is running.
alive() { [ -n "$1" ] && [ "$(start_of "${1%% *}")" = "${1#* }" ]; }

# Prints the first line of file $1 if it has the form of a process: process id and start time.
process_in() { read_file "$1" 64 | head -n 1 | grep -xE '[1-9][0-9]{0,8} [0-9]{1,20}'; }

# Kills the processes of the node with control folder $1, which are found by their environment.
# Everything that a rank has started inherits it. Spares commands of --on-event.
kill_marked() {
  run=${1##*/runs/} rank=${1%/*}
  grep -lzxF "DDPCTL_RUN_ID=${run%%/*}" /proc/[0-9]*/environ 2>/dev/null |
    xargs -r grep -lzxF "DDPCTL_NODE_RANK=${rank##*/}" 2>/dev/null |
    xargs -r grep -lzxF "DDPCTL_ATTEMPT=${1##*-}" 2>/dev/null |
    xargs -r grep -LzxF DDPCTL_HOOK=1 2>/dev/null |
    while read -r file; do
      pid=${file#/proc/}
      kill -s KILL "${pid%/environ}" 2>/dev/null
    done
}

# Kills what is left of session $1. If Apptainer's own process has been killed, that is the process
# that serves the files of the image.
kill_session() {
  for stat in /proc/[0-9]*/stat; do
    fields=$(cat "$stat" 2>/dev/null) || continue
    session=$1 pid=${fields%% *}
    # shellcheck disable=SC2086 # fields
    set -- ${fields##*) }
    [ "$4" != "$session" ] || kill -s KILL "$pid" 2>/dev/null
    set -- "$session"
  done
}

# Prints the state of the node with control folder $1: `created`, `running SINCE`, or `exited SINCE
# UNTIL CODE` and the last line of its journal. Times are unix seconds; CODE may be missing.
print_state() {
  line=$(process_in "$1/pid")
  since=$(stat -c %Y "$1/pid" 2>/dev/null)
  if [ -z "$line" ]; then
    printf 'created\n'
  elif alive "$line"; then
    printf 'running %s\n' "$since"
  else
    printf 'exited %s %s %s\n' "$since" "$(stat -c %Y "$1/journal" 2>/dev/null)" "$(read_file "$1/exit" 3)"
    [ ! -f "$1/journal" ] || tail -c 65536 "$1/journal" | tail -n 1 | tr -d '\0'
  fi
}
