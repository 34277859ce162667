#!/bin/sh
# To be sourced. Prints the path of the Python $1, which is a path, a name on PATH, or conda:NAME.
find_python() {
  case $1 in
    conda:*)
      name=${1#conda:}
      for root in "$CONDA_ROOT" "$(conda info --base 2>/dev/null)" "$HOME/miniconda3" "$HOME/miniforge3" \
        "$HOME/mambaforge" "$HOME/anaconda3" /opt/conda /opt/miniconda3; do
        if [ -x "$root/envs/$name/bin/python" ]; then
          printf '%s\n' "$root/envs/$name/bin/python"
          return
        fi
      done
      echo "there is no conda environment $name" >&2
      return 1
      ;;
    [~]/*) python=$HOME/${1#??} ;;
    *) python=$1 ;;
  esac
  command -v "$python" || { echo "there is no Python $python" >&2; return 1; }
}

# Prints the version and architecture of the Python at path $1, which form the name of the folder of
# its wheels, and the version of its glibc: `3.11-x86_64 2.36`.
platform_of() {
  "$1" -I -S -c '
import platform, sys
print("%d.%d-%s" % (*sys.version_info[:2], platform.machine()), platform.libc_ver()[1])'
}
