#!/bin/sh
# Prints the paths among its arguments that do not exist on this host.
for path; do [ -e "$path" ] || printf '%s\n' "$path"; done
