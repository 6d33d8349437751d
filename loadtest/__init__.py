"""Load tests and benchmarks: Taskgate beside its peers, and under simulated users."""
