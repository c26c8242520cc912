"""What if: a stored history with other settings, links or rules: decided again, and run on in the simulator."""
