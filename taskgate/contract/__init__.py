"""The contract: everything that the gateway and the workers must agree on."""
