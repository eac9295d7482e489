"""Upgrade of saves: to worlds that changed, and to today's format."""
