#!/bin/sh
# Prints the ids of the runs that have folders on this host, without reading any file there. With $1, also
# those that begin with it and have only reserved an attempt.
. ../plan/attempts.sh
for run in "$runs"/*/nodes ${1:+"$runs/$1"*/reserved}; do run=${run%/*}; echo "${run##*/}"; done
