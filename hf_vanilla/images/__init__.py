"""Image classification: data, task, classifier, evaluation, figures and page."""
