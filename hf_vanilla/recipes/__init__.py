"""Recipes: YAML files, and the options they set."""
