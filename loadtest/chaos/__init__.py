"""`make chaos`: real processes, random faults, and a verdict on every promise that was made meanwhile."""
