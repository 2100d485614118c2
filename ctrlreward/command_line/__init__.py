"""Parser, YAML files with their mistakes, and terminal output of all commands."""
