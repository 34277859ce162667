"""Install packages on hosts without containers."""
