"""What commands share: parser, YAML files and their mistakes, terminal output."""
