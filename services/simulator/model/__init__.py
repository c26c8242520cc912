"""A small model of nodes, runtimes and queues, in which policies are compared. Times are seconds, as floats."""
