#!/bin/sh
# Removes everything in ~/.ddpctl, which may be a link to another disk.
cd "$HOME" || exit 1
[ ! -e .ddpctl ] || find -H .ddpctl -mindepth 1 -maxdepth 1 -exec rm -rf {} +
