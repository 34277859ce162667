#!/bin/sh
# Creates the virtual environment of Python $2 with the wheels of the tree $1 (its digest), unless the
# environment exists and works.
. ../../engines/find_python.sh
python=$(find_python "$2") || exit 1
own=$(platform_of "$python") || exit 1
wheels=$HOME/.ddpctl/wheels/$1/${own%% *} venv=$HOME/.ddpctl/venvs/$1
umask 022
mkdir -p "${venv%/*}" || exit 1
exec 9> "${venv%/*}/.lock" && flock 9 || exit 1
if [ -e "$venv/ready" ] && "$venv/bin/python" -I -S -c ''; then exit 0; fi
rm -rf "$venv"
"$python" -I -m venv --without-pip "$venv" >&2 &&
  "$venv/bin/python" -I -B "$wheels/pip" install --quiet --no-input --no-index --no-deps \
    --no-cache-dir --disable-pip-version-check "$wheels"/*.whl >&2 &&
  : > "$venv/ready" && exit 0
rm -rf "$venv"
exit 1
