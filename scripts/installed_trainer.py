"""The module `trainer` of an installed ddpctl: `python -m trainer` runs ddpctl.trainer.

It is a module, not a package, so that your own `trainer.py` or `trainer/`, or any installed package
with that name, takes precedence.
"""

import runpy

import ddpctl.trainer

__path__ = list(ddpctl.trainer.__path__)

if __name__ == "__main__":
    runpy.run_module("trainer.__main__", run_name="__main__", alter_sys=True)
