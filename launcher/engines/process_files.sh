#!/bin/sh
# To be sourced. The files that represent a node of the process engine on its host. In the node's
# control folder: labels.json; once it has started, pid, with the process id and the start time in
# clock ticks, so that a process that reuses the id is never mistaken for the node; after its end,
# exit, with the exit code, unless the host went down. In the claims folder, for all users to read:
# NAME.STATE, with the line of pid (or -) and the labels.
. ../plan/attempts.sh

claims=/tmp/ddpctl-claims- # for each user, a folder whose name ends with their uid

# Succeeds if $1 is a file or folder that user $2 owns, and not a link.
belongs_to() { [ ! -L "$1" ] && [ "$(stat -c %u "$1" 2>/dev/null)" = "$2" ]; }

# Prints `UID NAME` of each claims folder that belongs to the user in its name, sorted. One process looks
# at all folders, because another user may have made thousands.
claims_folders() {
  find "${claims%/*}" -maxdepth 1 -name "${claims##*/}*" ! -name '*[!a-zA-Z0-9.-]*' -type d -printf '%U %f\n' |
    grep -xE "([0-9]+) ${claims##*/}\\1([.].*)?" | LC_ALL=C sort
}

# Prints the path of this user's claims folder. Another user may have taken the first name.
claims_folder() {
  user=$(id -u) own=$claims$(id -u)
  name=$(claims_folders | grep -m 1 "^$user ")
  if [ -n "$name" ]; then
    printf '%s\n' "${claims%/*}/${name#* }"
    return
  fi
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

# Prints the first line of stdin if it has the form of a process: process id and start time.
as_process() { head -n 1 | grep -xE '[1-9][0-9]{0,8} [0-9]{1,20}'; }
process_in() { read_file "$1" 64 | as_process; }

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
