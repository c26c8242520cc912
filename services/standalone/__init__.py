"""All processes on one machine, supervised."""
