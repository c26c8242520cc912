"""A whole cluster in one thread under a virtual clock, with every fault that a seed can throw, and what must hold through it.

python -m tests.simulation.campaign --seeds 0-299
"""
