"""Model cards, and pushing to the Hub."""
