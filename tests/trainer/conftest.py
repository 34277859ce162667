from __future__ import annotations

import torchvision_on_cpu  # noqa: F401
