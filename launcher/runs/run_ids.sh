#!/bin/sh
# Prints the ids of the runs that have node folders on this host, without reading any file. With $1,
# also prints the ids of runs that have only reserved an attempt, if they begin with $1.
. ../plan/attempts.sh
for run in "$runs"/*/nodes ${1:+"$runs/$1"*/reserved}; do run=${run%/*}; echo "${run##*/}"; done
