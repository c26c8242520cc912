"""The command line: `leaseway <command>`."""
