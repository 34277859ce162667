"""python -m trainer"""

import os
import sys

from trainer.cli import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    ranks = sys.modules.get("trainer.distributed")
    if ranks is not None and ranks.kept:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(
            code
        )  # the interpreter's own way out would take apart what trainer.distributed keeps
    sys.exit(code)
