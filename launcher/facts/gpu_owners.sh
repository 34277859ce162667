#!/bin/sh
# To be sourced. `gpu_owners PID...` prints a tab-separated row per process: pid, user, container
# id, run id, start time (unix seconds), name. Unknown values are empty.
gpu_owners() {
  boot=$(sed -n 's/^btime //p' /proc/stat)
  for pid; do
    uid=$(sed -n 's/^Uid:.\([0-9]*\).*/\1/p' "/proc/$pid/status" 2>/dev/null)
    user=$(id -nu "$uid" 2>/dev/null || echo "$uid")
    container=$(grep -Eo '[0-9a-f]{64}' "/proc/$pid/cgroup" 2>/dev/null | tail -n 1)
    run=$(tr '\0' '\n' 2>/dev/null < "/proc/$pid/environ" | sed -n 's/^DDPCTL_RUN_ID=//p' | head -n 1)
    stat=$(cat "/proc/$pid/stat" 2>/dev/null)
    # shellcheck disable=SC2086 # one argument per field
    set -- ${stat##*) }
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$pid" "$user" "$container" "$run" \
      "${20:+$((boot + ${20:-0} / 100))}" "$(tr -d '\n\t' 2>/dev/null < "/proc/$pid/comm")"
  done 2>/dev/null
}
