"""Use of trajectory forecasters: forecasts of files and of frames that arrive, scores."""
