#!/bin/sh
# Creates the draft of a tree from scratch, with links to the files of an earlier tree.
# $1: the kind of tree (such as datasets), $2: digest, $3: token of this push,
# $4: digest of the earlier tree or none
# stdin: paths to remove from the draft, each followed by NUL
umask 022
LC_ALL=C; export LC_ALL # the remedy depends on what cp and mkdir print
cd "$HOME/.ddpctl/$1" && rm -rf ".$2.$3" && mkdir ".$2.$3" || exit 1
if [ "$4" != none ]; then
  cp -al "$4" ".$2.$3/tree" 2>/dev/null || { rm -rf ".$2.$3/tree" && cp -a "$4" ".$2.$3/tree"; } ||
    exit 1
  cd ".$2.$3/tree" && xargs -0 rm -rf --
else
  mkdir ".$2.$3/tree"
fi
