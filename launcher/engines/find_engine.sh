#!/bin/sh
# To be sourced. Sets $engine to docker or podman. Non-interactive logins often lack the folder of
# `docker` in PATH. Where both are installed, Podman serves users who may not use Docker. `docker`
# may itself be Podman.
# shellcheck disable=SC2034 # its readers are other files
PATH="$PATH:/usr/bin:/usr/local/bin:/snap/bin:$HOME/bin"
engine=docker
if command -v podman >/dev/null 2>&1; then
  case $(docker version 2>&1) in
    *"not found"*|*[Pp]odman*|*"ermission denied"*) engine=podman ;;
  esac
fi
