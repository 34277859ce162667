#!/bin/sh
# Prints the size of each entry of ~/.ddpctl as KB, a tab and NAME. stdin: the entries' names, each
# followed by NUL. Omits what takes too long to measure, such as millions of files on NFS.
cd "$HOME/.ddpctl" 2>/dev/null || exit 0
timeout 400 xargs -0 -r -n 1 du -sk -- 2>/dev/null
