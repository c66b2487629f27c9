"""Alerts on the events of coretapd, to webhooks."""

__version__ = "0.1.0"
