"""The web page for translation, and the service behind it."""
