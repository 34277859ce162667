#!/bin/sh
# Prints the compressed manifest of the tree with digest $1.
cat "$HOME/.ddpctl/manifests/$1"
