"""Synchronous client of the service's HTTP API."""

from taskgate.client.errors import Refused, ServiceError, Unreachable
from taskgate.client.http import Client
from taskgate.client.models import FINAL, Event, Progress, Task, TaskOptions

__all__ = ["FINAL", "Client", "Event", "Progress", "Refused", "ServiceError", "Task", "TaskOptions", "Unreachable"]
