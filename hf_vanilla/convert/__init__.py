"""Checkpoints of other toolkits to ours and back: a table of names per format, nothing else."""
