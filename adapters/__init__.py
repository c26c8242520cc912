"""One folder for each technology; none knows another."""
