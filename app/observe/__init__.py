"""Logs and metrics: they look at the gateway, which does not know them."""
