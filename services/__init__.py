"""One folder for each process: wiring and loops only."""
