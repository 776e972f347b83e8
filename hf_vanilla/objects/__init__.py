"""Object detection: data, task, detector, evaluation, figures and page."""
