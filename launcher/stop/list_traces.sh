#!/bin/sh
# Prints ~/.ddpctl and the host's own name. With $1, also prints the parts of the folder as `KB
# NAME`, and attempts that may be running as `open RUN HOST`.
. ../plan/attempts.sh
printf '%s\n' "$(readlink -f "$HOME/.ddpctl")" "$(uname -n)"
{ [ -n "$1" ] && cd "$HOME/.ddpctl" 2>/dev/null; } || exit 0
for attempt in runs/*/$attempts; do
  is_open "$attempt" || continue
  run=${attempt#runs/}
  printf 'open %s %s\n' "${run%%/*}" "$(cat "$attempt/host")"
done
for part in * .[!.]*; do
  [ -e "$part" ] || [ -L "$part" ] || continue
  if [ "$part" = runs ]; then
    for run in runs/*; do [ -e "$run" ] && du -sk "$run" 2>/dev/null; done
  else
    du -sk "$part" 2>/dev/null
  fi
done
:
