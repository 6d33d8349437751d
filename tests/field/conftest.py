"""The cases of field_cases.md have the rig of the system tests, and the gateways of the API's."""

from tests.api.conftest import gateway_of, live_store, shared_gateway, worker
from tests.system.conftest import rig

__all__ = ["gateway_of", "live_store", "rig", "shared_gateway", "worker"]
