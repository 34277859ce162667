#!/bin/sh
# Prints the newest events in the first $2 bytes of the journal $1, at most $4 bytes of them. Leaves out
# `usage` events, which come every few seconds. $3: the text that marks an event
[ -f "$1" ] || exit 0
{
    echo # the first line, of which the limit may leave only a part, is left out
    head -c "$2" "$1" | grep -a "^[0-9.]*$3" | grep -av '"kind": "usage"'
} | tail -c "$4" | tail -n +2
