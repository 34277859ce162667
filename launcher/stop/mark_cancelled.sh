#!/bin/sh
# Marks run $1 as cancelled: its reserved attempts, so that none of them starts, and its nodes, so
# that their supervisors do not treat SIGTERM as a failure. Each host writes its own marks, because
# an NFS client may see those of other hosts too late. The marks are read by supervisor/main.py,
# start/reservation_cancelled.sh, start/cancelled_reservations.sh and runs/reported_nodes.sh.
. ../plan/attempts.sh
# Twice, because the first pass may miss a restart that reserves its attempt in the meantime. Such a
# restart then looks for the previous attempt's mark, which exists before the second pass.
for _ in 1 2; do
  for reserved in "$runs/$1"/reserved/*; do
    if [ -L "$reserved" ]; then : > "$reserved-cancelled-$(uname -n)" || exit 1; fi
  done
done
for attempt in "$runs/$1"/$attempts; do
  if own "$attempt"; then : > "$attempt/cancelled" || exit 1; fi
done
