#!/bin/sh
# Prints the version and architecture of Python $1, which names the folder of its wheels, and its C
# library: `3.11-x86_64 2.36`.
. ../../engines/find_python.sh
python=$(find_python "$1") || exit 1
exec "$python" -I -S -c '
import platform, sys
print("%d.%d-%s" % (*sys.version_info[:2], platform.machine()), platform.libc_ver()[1])'
