"""The queues Taskgate is compared with; they live in environments of their own."""
