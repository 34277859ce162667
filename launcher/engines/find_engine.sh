#!/bin/sh
# To be sourced. Sets $engine to docker or podman. In non-interactive logins, PATH often lacks the
# folder of `docker`. Where both are installed, Podman is for users who may not use Docker. `docker`
# may itself be Podman. If it does not exist, the shell says so in the user's language, and returns 127.
# shellcheck disable=SC2034 # other files read it
PATH="$PATH:/usr/bin:/usr/local/bin:/snap/bin:$HOME/bin"
engine=docker
if command -v podman >/dev/null 2>&1; then
  case $(docker version 2>&1 || echo "exit $?") in
    *"exit 127"|*[Pp]odman*|*"ermission denied"*) engine=podman ;;
  esac
fi
