#!/bin/sh
# Prints the platform of Python $1.
. ../../engines/find_python.sh
python=$(find_python "$1") || exit 1
platform_of "$python"
