"""The subcommands of `ctrlreward`, a module each with `run(arguments)`."""
