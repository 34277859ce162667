#!/bin/sh
# The key and known_hosts of the cluster in a box, then whatever was asked for.
set -eu
mkdir -p -m 700 ~/.ssh
cp /keys/id_ed25519 /keys/known_hosts ~/.ssh/
printf 'Host node*\n  User ddp\n' >~/.ssh/config
exec "$@"
