"""Commands of the `ctrlreward` command line, each a module with `run(arguments)`."""
