#!/bin/sh
# Prints the ids of the runs that have folders on this host, without reading any file there.
. ../plan/attempts.sh
for run in "$runs"/*/nodes; do run=${run%/nodes}; echo "${run##*/}"; done
