#!/bin/sh
# Marks run $1 as cancelled for this host's supervisors, so that SIGTERM does not count as a failure.
# Each host writes its own mark, because an NFS client may see another host's too late.
. ../plan/attempts.sh
for attempt in "$runs/$1"/$attempts; do
  if own "$attempt"; then : > "$attempt/cancelled" || exit 1; fi
done
