#!/bin/sh
# To be sourced. What stands for a node of the process engine on its host. In its control folder:
# labels.json, and once it has started, pid, with the process id and the start time in clock ticks,
# so that a process that reuses the id is never taken for it; after its end, exit, with the exit code,
# unless the host went down. In the claims folder, for all users to
# read: NAME.STATE, with the same line or -, and the labels.
. ../plan/attempts.sh

# Succeeds if $1 is a file or folder of user $2, and no link.
belongs_to() { [ ! -L "$1" ] && [ "$(stat -c %u "$1" 2>/dev/null)" = "$2" ]; }

# Prints this user's folder of claims. Another user may have taken its first name.
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

# Writes the text on stdin to file $1, at once.
replace() { cat > "${1%/*}/.${1##*/}.$$" && mv "${1%/*}/.${1##*/}.$$" "$1"; }

# Prints when process $1 started, unless it has ended.
start_of() {
  fields=$(cat "/proc/$1/stat" 2>/dev/null) || return
  # shellcheck disable=SC2086 # fields
  set -- ${fields##*) }
  [ "$1" = Z ] || printf '%s\n' "${20}"
}

# Succeeds if the process in the line $1 runs.
alive() { [ -n "$1" ] && [ "$(start_of "${1%% *}")" = "${1#* }" ]; }

# Prints the line with the process in file $1, if it is well formed.
process_in() { read_file "$1" 64 | head -n 1 | grep -xE '[1-9][0-9]{0,8} [0-9]{1,20}'; }

# Kills the processes of the node with control folder $1, by their environment. What a rank has started
# has it too. Commands of --on-event do not count.
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

# Kills what is left of session $1. If something kills Apptainer's own process, that is the one that
# serves the files of the image.
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

# Prints the state of the node in folder $1: `created`, `running SINCE`, or `exited SINCE UNTIL CODE`
# and the last line of its journal. Times are unix seconds; CODE may be absent.
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
