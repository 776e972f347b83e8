"""The web page and the service behind it."""
