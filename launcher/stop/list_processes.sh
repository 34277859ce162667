#!/bin/sh
# Prints pid, run id and name of each process that carries a run id in an environment that this user
# may read: run $1, or any. Root may read all environments, so without $1 it gets only runs with a
# folder in its own home. Processes of --on-exit do not count.
. ../plan/attempts.sh
for e in $(grep -lz "^DDPCTL_RUN_ID=$1" /proc/[0-9]*/environ 2>/dev/null |
    xargs -r grep -LzxF DDPCTL_HOOK=1 2>/dev/null); do
  p=${e#/proc/}; p=${p%/environ}
  r=$(tr '\0' '\n' 2>/dev/null < "$e" | sed -n 's/^DDPCTL_RUN_ID=//p')
  [ -n "$1" ] || [ "$(id -u)" != 0 ] || [ -d "$runs/$r" ] || continue
  printf '%s %s %s\n' "$p" "$r" "$(cat "/proc/$p/comm" 2>/dev/null)"
done
