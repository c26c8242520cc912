"""What rows and stories say, in words: the same for the command line and the console."""
