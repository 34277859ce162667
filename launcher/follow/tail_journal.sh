#!/bin/sh
# Prints the journal $2 from byte $1 on, and follows it. Where tail must poll (overlay file systems,
# BusyBox), its default interval of one second is too long, but not every tail accepts a fraction of
# a second.
tail -s 0.03 -c 0 /dev/null 2>/dev/null && exec tail -s 0.03 -c "+$1" -F "$2"
exec tail -c "+$1" -F "$2"
