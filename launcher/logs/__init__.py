"""The journal format, and the log store of this machine."""
