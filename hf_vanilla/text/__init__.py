"""Translation: data, task, translator, evaluation, figures and page."""
