#!/bin/sh
# Deletes the control folder and the copy of the code of an attempt that did not start, so that a later
# try copies the code again. $1: run folder, $2: control folder
rm -rf -- "$2" "$1/nodes/.workspace-${2##*/}-"*
# only of the first attempt, because earlier attempts may have written to the copy of a later one
[ "${2##*/}" != attempt-1 ] || rm -rf -- "$1/workspace"
