"""Training jobs from YAML files, their recipes and data."""
