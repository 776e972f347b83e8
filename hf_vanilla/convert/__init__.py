"""Convert checkpoints of other toolkits to our models and back; each format is a table of names."""
