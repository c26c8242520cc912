"""The aggregate that decides leases: fold, plan, step, commit."""
