#!/bin/sh
# Prints a line for each part of a push that this host already has: `have dataset`, `have workdir` or
# `have image`. Also prints `have python3` if the host has python3, which relaying needs, and
# `ssh $SSH_CONNECTION`, which contains the host's address. $1: dataset digest or "", $2: workdir digest
# or "", $3: digest of an image file or of wheels, or ""; `have image` means that file, or a working
# environment made from the wheels
LC_ALL=C; export LC_ALL # the remedy depends on what mkdir prints
cd "$HOME" || exit
mkdir -p -m 700 .ddpctl && chmod 700 .ddpctl
# Once a tree has been touched, a concurrent `push --prune` keeps it.
have() { [ -n "$2" ] && touch -c "$3/$2" && [ -d "$3/$2" ] && echo "have $1"; }
have dataset "$1" .ddpctl/datasets
have workdir "$2" .ddpctl/workdirs
have image "$3" .ddpctl/images
venv=.ddpctl/venvs/$3
if [ -n "$3" ] && touch -c "$venv" && [ -e "$venv/ready" ] && "$venv/bin/python" -I -S -c '' 2>/dev/null; then
  echo 'have image'
fi
command -v python3 >/dev/null 2>&1 && echo 'have python3'
printf 'ssh %s\n' "$SSH_CONNECTION"
exit 0
