"""What nodes serve: which model may stand in for which, and what a request is estimated to need of one."""
