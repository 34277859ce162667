#!/bin/sh
# Runs crun without the limit on processes, which a machine with cgroup version 1 cannot set.
for word; do
    if [ "${before:-}" = --bundle ]; then
        sed -i -E 's/,?"pids":\{[^}]*\}//; s/\{,/{/' "$word/config.json"
    fi
    before=$word
done
exec /usr/bin/crun "$@"
