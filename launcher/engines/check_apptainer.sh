#!/bin/sh
# Succeeds if Apptainer can start containers from image files here. Otherwise, the exit code shows why.
command -v apptainer >/dev/null 2>&1 || exit 3
programs=$(apptainer buildcfg | sed -n 's/^LIBEXECDIR=//p')/apptainer/bin
[ ! -u "$programs/starter-suid" ] || exit 0
unshare --user --map-root-user true 2>/dev/null || exit 4
[ -w /dev/fuse ] || exit 5
for program in squashfuse_ll squashfuse "$programs/squashfuse_ll"; do
  if command -v "$program" >/dev/null 2>&1; then exit 0; fi
done
exit 6
