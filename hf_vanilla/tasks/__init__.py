"""One module for each task that the training engine can run."""
