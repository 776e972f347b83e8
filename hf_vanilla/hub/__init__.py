"""Model cards, pushing to the Hub, Spaces."""
