"""The journal format, and this machine's log store."""
