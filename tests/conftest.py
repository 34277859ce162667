"""What holds for every test: nobody's SSH, run or Docker settings are seen."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: what is tested is what comes out, not how fast.
settings.register_profile("ddpctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ddpctl")

# A shell's background job ignores Ctrl-C, and so would every process that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

FOREIGN = ("DDPCTL_", "PET_", "TORCHELASTIC_", "TRAINER_", "NCCL_", "GLOO_")
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OWN = ("SSH_AUTH_SOCK", "SSH_CONNECTION", "NO_COLOR", "FORCE_COLOR")


@pytest.fixture(autouse=True)
def _clean_environment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty home folder, and none of the variables that a run or a login would set."""
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in RANKS + OWN:
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "no-home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
