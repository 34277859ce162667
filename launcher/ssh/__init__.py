"""Hosts behind SSH, and this machine. Only this package imports `paramiko`."""

import warnings

# Older paramiko versions use cipher names that newer cryptography versions deprecate.
warnings.filterwarnings("ignore", module="paramiko")
