"""The cases of field_cases.md have the rig of the system tests, and the gateways of the API's."""

from tests.api.conftest import gateway_of, live_store, serve, worker
from tests.system.conftest import rig

__all__ = ["gateway_of", "live_store", "rig", "serve", "worker"]
