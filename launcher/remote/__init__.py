"""One machine reached by SSH, or this one. Nothing else imports paramiko or docker.

`launcher.remote.node` is the way in; it loads paramiko and docker on first use only.
"""

import sys
from typing import Any

# paramiko loads invoke, a tenth of a launch's start-up, for a reader of SSH configs that ddpctl has
# no use for (it asks `ssh -G`). Without invoke, paramiko leaves out just that.
_modules: dict[str, Any] = sys.modules
_modules.setdefault("invoke", None)
