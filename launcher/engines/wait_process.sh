#!/bin/sh
# Waits until the node in control folder $1 has ended. Prints its state.
. ./process_files.sh
line=$(process_in "$1/pid")
while alive "$line"; do sleep 0.2; done
[ -e "$1/exit" ] || sleep 0.5 # until the shell that waits for it has written that
print_state "$1"
