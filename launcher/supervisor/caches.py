"""Caches that outlive a run: what libraries download or compile, in a folder of the host."""

import os
from typing import Dict, Mapping

CACHES = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "PIP_CACHE_DIR": "pip",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}


def with_caches(environment: Mapping[str, str]) -> Dict[str, str]:
    """Add the variables that neither the job nor the image sets, if the host has such a folder."""
    folder = environment.get("DDPCTL_CACHE_DIR")
    ours = {name: os.path.join(folder, sub) for name, sub in CACHES.items()} if folder else {}
    return {**ours, **environment}
