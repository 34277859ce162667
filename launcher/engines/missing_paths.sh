#!/bin/sh
# Prints those of its arguments that do not exist on the host.
for path; do [ -e "$path" ] || printf '%s\n' "$path"; done
