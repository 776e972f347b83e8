"""Use of a trained translation model."""
