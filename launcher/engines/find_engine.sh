#!/bin/sh
# To be sourced. Sets $engine to docker or podman. In non-interactive logins, PATH often lacks the
# folder of `docker`. Where both are installed, Podman is for users who may not use Docker. `docker`
# may itself be Podman.
# shellcheck disable=SC2034 # other files read it
PATH="$PATH:/usr/bin:/usr/local/bin:/snap/bin:$HOME/bin"
engine=docker
if command -v podman >/dev/null 2>&1; then
  case $(docker version 2>&1) in
    *"not found"*|*[Pp]odman*|*"ermission denied"*) engine=podman ;;
  esac
fi
