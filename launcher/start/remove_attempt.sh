#!/bin/sh
# Deletes what prepare_node.sh made for an attempt that did not start, so that a later try copies the
# code again. $1: run folder, $2: control folder
rm -rf -- "$2" "$1/nodes/.workspace-${2##*/}-"*
# a later attempt keeps it, because earlier ones may have written to it
[ "${2##*/}" != attempt-1 ] || rm -rf -- "$1/workspace"
