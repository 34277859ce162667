#!/bin/sh
# Prints what this account has of ddpctl on this host, one item per line:
#   host TIME NAME FOLDER    unix time, the host's own name, ~/.ddpctl with links resolved
#   process PID RUN NAME     each process with run id $2 or, if $2 is empty, any run id
# and, if $1 is `all`, what is in ~/.ddpctl:
#   entry TIME NAME          each top-level entry, run, tree (data, code, packages or an image) and
#                            draft of a push, with the time of its last change
#   busy NAME                each draft that a push is writing to
#   open RUN DIGEST... HOST  each attempt that may be running on any host with this home: the trees
#                            that it uses, and its node's host
. ../plan/attempts.sh
now=$(date +%s)
echo "host $now $(uname -n) $(readlink -f "$HOME/.ddpctl")"

# Only environments that this user may read count. Root may read all; so without $2, root gets only
# runs with a folder in its own home. Processes of hooks (--on-exit, --on-event) do not count.
# No pipes, so that a program that is missing or was killed (exit code 126 or more) ends the script: an
# incomplete list would pass as proof that nothing is left. Other exit codes may mean that a process has
# ended or belongs to another user.
ran() { [ "$1" -lt 126 ] || { echo "$2: exit $1" >&2; exit 1; }; }
environs=$(grep -lz "^DDPCTL_RUN_ID=$2" /proc/[0-9]*/environ 2>/dev/null); ran $? grep
# shellcheck disable=SC2086 # several paths without spaces
[ -z "$environs" ] || { environs=$(grep -LzxF DDPCTL_HOOK=1 $environs 2>/dev/null); ran $? grep; }
for e in $environs; do
  p=${e#/proc/}; p=${p%/environ}
  r=$(sed -nz 's/^DDPCTL_RUN_ID=//p' "$e" 2>/dev/null); ran $? sed
  [ -n "$2" ] || [ "$(id -u)" != 0 ] || [ -d "$runs/$r" ] || continue
  printf 'process %s %s %s\n' "$p" "$r" "$(cat "/proc/$p/comm" 2>/dev/null)"
done

{ [ "$1" = all ] && cd "$HOME/.ddpctl" 2>/dev/null; } || exit 0
trees='datasets/* workdirs/* wheels/* venvs/* images/*'
drafts='datasets/.[!.]* workdirs/.[!.]* wheels/.[!.]* images/.[!.]*'
# shellcheck disable=SC2086 # patterns
stat -c 'entry %Y %n' -- * .[!.]* runs/* $trees $drafts 2>/dev/null
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
for draft in $drafts; do
  [ -f "$draft/holder" ] || continue
  read -r pid since _ < "$draft/holder"
  if [ "$since" = "$boot" ]; then
    kill -0 "$pid" 2>/dev/null || continue
  else # the push is on another host with this home, or this host has rebooted
    [ $((now - $(stat -c %Y "$draft"))) -lt 86400 ] || continue
  fi
  printf 'busy %s\n' "$draft"
done
for attempt in runs/*/$attempts; do
  is_open "$attempt" || continue
  run=${attempt#runs/}
  printf 'open %s' "${run%%/*}"
  read_file "$attempt/run.json" 1048576 |
    grep -oE '"(dataset|workdir|image)_digest": "[0-9a-f]{64}' | sed 's/.*"/ /' | tr -d '\n'
  printf ' %s\n' "$(read_file "$attempt/host" 256 | tr -d '\n')"
done
:
