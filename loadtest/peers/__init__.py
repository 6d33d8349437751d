"""The queues Taskgate is compared with; they live in an environment of their own."""
