#!/bin/sh
# Waits until the node with control folder $1 has ended, and prints its state.
. ./process_files.sh
line=$(process_in "$1/pid")
while alive "$line"; do sleep 0.2; done
[ -e "$1/exit" ] || sleep 0.5 # the shell that waits for the node may still be about to write this file
print_state "$1"
