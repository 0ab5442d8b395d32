"""The command lines: `elastic-run` and `resilin`, one file per subcommand. Never loads numpy."""
