#!/bin/sh
# Prints the versions of Python $1 and of its packages as JSON. Does not import torch: too slow.
. ../engines/find_python.sh
python=$(find_python "$1") || exit 1
exec "$python" -c '
import json, platform
from importlib.metadata import PackageNotFoundError, version
versions = {"python": platform.python_version()}
for name in ("torch", "torchvision", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
    try:
        versions[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(versions))'
