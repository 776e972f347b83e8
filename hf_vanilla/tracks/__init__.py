"""Trajectory forecasting: data, tasks, forecaster, evaluation, figures and page."""
