"""What the pages in a browser share: component, style, pictures; the engine in JavaScript."""
