"""The cases of field_cases.md have the rig of the system tests."""

from tests.system.conftest import rig

__all__ = ["rig"]
