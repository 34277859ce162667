"""Facts about a host, as reported by the host itself."""
