"""Hosts reached by SSH, and this machine. `paramiko` is imported only here."""

import warnings

# Older versions of paramiko name ciphers that newer versions of cryptography deprecate.
warnings.filterwarnings("ignore", module="paramiko")
