"""Use of a trained image model: labels, scores, attention."""
