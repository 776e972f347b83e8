"""Files and datasets to rows, tokens and batches."""
